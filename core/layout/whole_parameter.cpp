#include <algorithm>
#include <limits>
#include <numeric>

#include "core/errors.hpp"
#include "core/layout/arithmetic.hpp"
#include "core/layout/buffer_layout.hpp"
#include "core/layout/validation.hpp"

namespace troupe::core {
namespace {

/// For products of elements and shards, which do not fit into 64 bits.
__extension__ using Wide = __int128;

/// The cost of a parameter to an orthogonalising optimizer. A double has the range, and the same bits on
/// every rank.
double compute_cost(const LayoutParameter& parameter) {
  if (parameter.rows <= 0 || parameter.columns <= 0) return static_cast<double>(parameter.elements);
  const auto rows = static_cast<double>(parameter.rows) * static_cast<double>(parameter.row_shards);
  const auto columns = static_cast<double>(parameter.columns);
  const double shorter = std::min(rows, columns);
  return std::max(rows, columns) * shorter * shorter;
}

std::size_t least(const std::vector<std::int64_t>& values) {
  return static_cast<std::size_t>(std::min_element(values.begin(), values.end()) - values.begin());
}

/// The parameters of a future bucket, in the order of arrival, with the shards' loads in a first packing:
/// each parameter goes to the least loaded shard.
class Chunk {
 public:
  explicit Chunk(std::size_t shards) : loads_(shards) {}

  const std::vector<std::size_t>& members() const { return members_; }
  std::int64_t elements() const { return elements_; }
  std::int64_t largest() const { return largest_; }

  void add(std::size_t parameter, std::int64_t elements) {
    members_.push_back(parameter);
    elements_ += elements;
    largest_ = std::max(largest_, elements);
    std::int64_t& load = loads_[least(loads_)];
    load = round_up(load, kParameterAlignment) + elements;
  }

  /// Whether the parameter fits into padding that the bucket has anyway.
  bool absorbs(std::int64_t elements, std::int64_t shard_divisor) const {
    const auto [low, high] = std::minmax_element(loads_.begin(), loads_.end());
    return round_up(*low, kParameterAlignment) + elements <= round_up(*high, shard_divisor);
  }

 private:
  std::vector<std::size_t> members_;
  std::int64_t elements_ = 0;
  std::int64_t largest_ = 0;
  std::vector<std::int64_t> loads_;
};

class WholeParameterLayout {
 public:
  WholeParameterLayout(const std::vector<LayoutParameter>& parameters, const LayoutOptions& options)
      : parameters_(parameters),
        options_(options),
        divisor_(whole_parameter_shard_divisor(options.shards, options.pad_for_bus_bandwidth,
                                               options.part_multiple)),
        chunk_(shards()),
        costs_(shards()) {
    layout_.parameters.resize(parameters.size());
    layout_.shards = options.shards;
  }

  Result<BufferLayout> compute() {
    for (std::size_t i = parameters_.size(); i-- > 0;) {
      if (parameters_[i].shared_embedding) {
        emit_chunk();
        emit_shared(i);
        continue;
      }
      if (may_close() && !chunk_.absorbs(parameters_[i].elements, divisor_)) emit_chunk();
      chunk_.add(i, parameters_[i].elements);
    }
    emit_chunk();
    if (positions_ <= std::numeric_limits<std::int64_t>::max()) return std::move(layout_);
    return fail(
        Errc::invalid_argument,
        "with padding {} shards would have more than 2^63 elements together; use fewer shards, or cut "
        "the largest of the parameters, which are never split",
        options_.shards);
  }

 private:
  std::size_t shards() const { return static_cast<std::size_t>(options_.shards); }

  bool may_close() const {
    return options_.bucket_size && !chunk_.members().empty() &&
           chunk_.elements() >=
               std::max<Wide>(*options_.bucket_size, Wide{options_.shards} * chunk_.largest() * 9 / 10);
  }

  /// The shard that takes the parameter: the one with the least cost so far among those that stay within 1.3
  /// times the even share, or if there is none, the emptiest.
  std::size_t choose_shard(std::int64_t elements, const std::vector<std::int64_t>& cursors) const {
    std::optional<std::size_t> chosen;
    for (std::size_t shard = 0; shard < cursors.size(); ++shard) {
      const std::int64_t end = round_up(cursors[shard], kParameterAlignment) + elements;
      const bool fits = Wide{end} * 10 * options_.shards <= Wide{chunk_.elements()} * 13;
      if (fits && (!chosen || costs_[shard] < costs_[*chosen])) chosen = shard;
    }
    return chosen ? *chosen : least(cursors);
  }

  void emit_chunk() {
    if (chunk_.members().empty()) return;
    auto order = chunk_.members();
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return compute_cost(parameters_[a]) > compute_cost(parameters_[b]);
    });
    std::vector<std::int64_t> cursors(shards());
    std::vector<std::size_t> shard_of;
    for (const std::size_t parameter : order) {
      const std::int64_t elements = parameters_[parameter].elements;
      const std::size_t shard = choose_shard(elements, cursors);
      const std::int64_t start = round_up(cursors[shard], kParameterAlignment);
      cursors[shard] = start + elements;
      costs_[shard] += compute_cost(parameters_[parameter]);
      layout_.parameters[parameter] = {start, cursors[shard], 0};
      shard_of.push_back(shard);
    }
    const std::int64_t shard_size = round_up(*std::max_element(cursors.begin(), cursors.end()), divisor_);
    if (!has_room(shard_size)) return;
    for (std::size_t i = 0; i < order.size(); ++i) {
      ParameterPlace& place = layout_.parameters[order[i]];
      const std::int64_t shard_start = layout_.elements + static_cast<std::int64_t>(shard_of[i]) * shard_size;
      place = {shard_start + place.start, shard_start + place.end, static_cast<int>(layout_.buckets.size())};
    }
    close_bucket(shard_size, chunk_.elements());
    chunk_ = Chunk(shards());
  }

  /// Counts this many more elements for each shard; false once positions no longer fit into their type.
  bool has_room(std::int64_t shard_size) {
    positions_ += Wide{shard_size} * options_.shards;
    return positions_ <= std::numeric_limits<std::int64_t>::max();
  }

  void emit_shared(std::size_t parameter) {
    const std::int64_t elements = parameters_[parameter].elements;
    if (!has_room(round_up(elements, divisor_))) return;
    layout_.parameters[parameter] = {layout_.elements, layout_.elements + elements,
                                     static_cast<int>(layout_.buckets.size())};
    close_bucket(round_up(elements, divisor_), elements);
  }

  void close_bucket(std::int64_t shard_size, std::int64_t unpadded) {
    const std::int64_t end = layout_.elements + shard_size * options_.shards;
    layout_.buckets.push_back({layout_.elements, end, unpadded});
    layout_.elements = end;
  }

  const std::vector<LayoutParameter>& parameters_;
  const LayoutOptions& options_;
  std::int64_t divisor_;
  Chunk chunk_;
  std::vector<double> costs_;  // per shard, over all buckets so far
  Wide positions_ = 0;         // the value that layout_.elements would have
  BufferLayout layout_;
};

}  // namespace

Result<BufferLayout> whole_parameter_layout(const std::vector<LayoutParameter>& parameters,
                                            const LayoutOptions& options) {
  TRY(validate(parameters, options));
  return WholeParameterLayout(parameters, options).compute();
}

}  // namespace troupe::core
