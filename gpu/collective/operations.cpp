#include "gpu/collective/operations.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/errors.hpp"

namespace troupe::gpu {
namespace {

using core::Errc;
using core::Result;

template <class... Args>
tl::unexpected<core::Error> refuse(const Operation& operation, fmt::format_string<Args...> format,
                                   Args&&... args) {
  return core::fail(Errc::invalid_argument, "{}: {}", name_of(operation.kind),
                    fmt::format(format, std::forward<Args>(args)...));
}

bool overlap(ConstBufferView a, ConstBufferView b) {
  const std::less<> before;
  return a.bytes > 0 && b.bytes > 0 && before(a.data, b.data + b.bytes) && before(b.data, a.data + a.bytes);
}

/// The checks of one operation; errors name the fields as in Operation.
class Inspection {
 public:
  Inspection(Operation& operation, int index, int size)
      : operation_(operation),
        index_(static_cast<std::size_t>(index)),
        size_(static_cast<std::size_t>(size)),
        width_(core::size_of(operation.dtype)) {}

  Result<void> run() {
    TRY(check_common());
    switch (operation_.kind) {
      case OperationKind::all_reduce:
        return check_all_reduce();
      case OperationKind::reduce_scatter:
        return check_parts("output_counts", operation_.output_counts, "input", operation_.input, "output",
                           operation_.output);
      case OperationKind::all_gather:
        return check_parts("input_counts", operation_.input_counts, "output", operation_.output, "input",
                           operation_.input);
      case OperationKind::broadcast:
        return check_broadcast();
      case OperationKind::all_to_all:
        return check_all_to_all();
      case OperationKind::send:
        return check_absent("output", operation_.output);
      case OperationKind::receive:
        return check_absent("input", operation_.input);
      case OperationKind::barrier:
        TRY(check_absent("input", operation_.input));
        return check_absent("output", operation_.output);
    }
    return refuse(operation_, "kind: expected a known operation");
  }

 private:
  Result<void> check_common() {
    TRY(check_view("input", operation_.input));
    TRY(check_view("output", operation_.output));
    if (operation_.deadline <= std::chrono::nanoseconds::zero()) {
      return refuse(operation_, "deadline: expected more than zero, found {} ns",
                    operation_.deadline.count());
    }
    TRY(check_peer());
    TRY(check_reduction());
    const OperationKind kind = operation_.kind;
    const RowLists& rows = operation_.rows;
    if ((rows.elements > 0 || rows.input || rows.output) && kind != OperationKind::all_to_all)
      return refuse(operation_, "rows: expected none, they are for all_to_all");
    if (kind != OperationKind::all_gather && kind != OperationKind::all_to_all) {
      TRY(check_no_counts("input_counts", operation_.input_counts));
    }
    if (kind != OperationKind::reduce_scatter && kind != OperationKind::all_to_all) {
      TRY(check_no_counts("output_counts", operation_.output_counts));
    }
    return {};
  }

  Result<void> check_view(std::string_view field, ConstBufferView view) {
    if (view.bytes > 0 && view.data == nullptr) {
      return refuse(operation_, "{}: expected memory, found null with {} bytes", field, view.bytes);
    }
    if (view.bytes % width_ != 0) {
      return refuse(operation_, "{}: expected whole elements of {} ({} bytes each), found {} bytes", field,
                    core::name_of(operation_.dtype), width_, view.bytes);
    }
    return {};
  }

  Result<void> check_peer() {
    const bool is_message =
        operation_.kind == OperationKind::send || operation_.kind == OperationKind::receive;
    if (!is_message && operation_.kind != OperationKind::broadcast) return {};
    if (operation_.peer < 0 || static_cast<std::size_t>(operation_.peer) >= size_) {
      return refuse(operation_, "peer: expected an index of the group's {} members, found {}", size_,
                    operation_.peer);
    }
    if (is_message && static_cast<std::size_t>(operation_.peer) == index_) {
      return refuse(operation_, "peer: expected another member, found this one ({}); copy instead", index_);
    }
    return {};
  }

  Result<void> check_reduction() {
    if (!reduces(operation_.kind)) return {};
    const core::DType dtype = operation_.dtype;
    if (dtype == core::DType::f8_e4m3 || dtype == core::DType::f8_e5m2) {
      return refuse(operation_, "dtype: {} can be moved but not reduced; cast it first",
                    core::name_of(dtype));
    }
    const bool of_bits = is_of_bits(operation_.reduce);
    const bool compares = operation_.reduce == ReduceOp::min || operation_.reduce == ReduceOp::max;
    if (dtype == core::DType::boolean && !compares && !of_bits) {
      return refuse(operation_, "reduce: expected min, max or a bit operation for boolean, found {}",
                    name_of(operation_.reduce));
    }
    if (of_bits && core::is_floating(dtype)) {
      return refuse(operation_, "reduce: {} is for integers and booleans, found {}",
                    name_of(operation_.reduce), core::name_of(dtype));
    }
    if (operation_.reduce == ReduceOp::average && !core::is_floating(dtype)) {
      return refuse(operation_, "reduce: average is for floating types, found {}; sum and divide instead",
                    core::name_of(dtype));
    }
    return {};
  }

  Result<void> check_no_counts(std::string_view field, const PartCounts& counts) {
    if (counts.empty()) return {};
    return refuse(operation_, "{}: expected none, found {}", field, counts.size());
  }

  Result<void> check_absent(std::string_view field, ConstBufferView view) {
    if (view.bytes == 0) return {};
    return refuse(operation_, "{}: expected nothing, found {} bytes", field, view.bytes);
  }

  Result<void> check_all_reduce() {
    if (operation_.input.bytes != operation_.output.bytes) {
      return refuse(operation_, "output: expected {} bytes as in input, found {}", operation_.input.bytes,
                    operation_.output.bytes);
    }
    if (operation_.input.data != operation_.output.data && overlap(operation_.input, operation_.output)) {
      return refuse(operation_, "output: expected the input itself or memory apart from it");
    }
    return {};
  }

  /// Reduce-scatter and all-gather: one side has all parts, the other this member's.
  Result<void> check_parts(std::string_view field, PartCounts& counts, std::string_view all_field,
                           ConstBufferView all, std::string_view own_field, ConstBufferView own) {
    TRY(fill_counts(field, counts, all_field, all));
    if (own.bytes != counts[index_] * width_) {
      return refuse(operation_, "{}: expected {}[{}] = {} elements, found {}", own_field, field, index_,
                    counts[index_], own.bytes / width_);
    }
    const std::size_t begin = counts.before(index_) * width_;
    const bool in_place = own.bytes > 0 && own.data == all.data + begin;
    if (!in_place && overlap(own, all)) {
      return refuse(operation_, "{}: expected memory apart from {}, or its part {}", own_field, all_field,
                    index_);
    }
    return {};
  }

  Result<void> check_broadcast() {
    if (static_cast<std::size_t>(operation_.peer) != index_) return check_absent("input", operation_.input);
    const bool same =
        operation_.output.data == operation_.input.data && operation_.output.bytes == operation_.input.bytes;
    if (operation_.output.bytes == 0 || same) return {};
    return refuse(operation_, "output: at the root expected the input or nothing, found {} bytes elsewhere",
                  operation_.output.bytes);
  }

  Result<void> check_all_to_all() {
    const RowLists& rows = operation_.rows;
    TRY(check_rows({"input_counts", operation_.input_counts}, {"rows.input", rows.input},
                   {"input", operation_.input}));
    TRY(check_rows({"output_counts", operation_.output_counts}, {"rows.output", rows.output},
                   {"output", operation_.output}));
    if (operation_.input_counts[index_] != operation_.output_counts[index_]) {
      return refuse(operation_, "output_counts: expected [{}] = {} as in input_counts, found {}", index_,
                    operation_.input_counts[index_], operation_.output_counts[index_]);
    }
    if (overlap(operation_.input, operation_.output)) {
      return refuse(operation_, "output: expected memory apart from input");
    }
    return {};
  }

  template <class Value>
  struct Field {
    std::string_view name;
    Value value;
  };

  Result<void> check_rows(Field<PartCounts&> counts,
                          Field<const std::optional<std::vector<std::int64_t>>&> rows,
                          Field<ConstBufferView> view) {
    const std::size_t elements = operation_.rows.elements;
    if (!rows.value) return fill_counts(counts.name, counts.value, view.name, view.value);
    if (elements == 0) return refuse(operation_, "rows.elements: expected those of a row, found 0");
    if (counts.value.size() != size_) {
      return refuse(operation_, "{}: expected {} numbers, one per member, as rows are named; found {}",
                    counts.name, size_, counts.value.size());
    }
    for (std::size_t member = 0; member < (counts.value.is_even() ? 1 : size_); ++member) {
      if (counts.value[member] % elements != 0)
        return refuse(operation_, "{}: expected whole rows of {} elements, found {}", counts.name, elements,
                      counts.value[member]);
    }
    if (counts.value.total() != rows.value->size() * elements) {
      return refuse(operation_, "{}: expected {} rows, as in {}, found {}", rows.name,
                    counts.value.total() / elements, counts.name, rows.value->size());
    }
    const std::size_t there = view.value.bytes / (elements * width_);
    for (const std::int64_t row : *rows.value) {
      if (row < 0 || static_cast<std::size_t>(row) >= there)
        return refuse(operation_, "{}: expected rows of the {} in {}, found {}", rows.name, there, view.name,
                      row);
    }
    return {};
  }

  Result<void> fill_counts(std::string_view field, PartCounts& counts, std::string_view view_field,
                           ConstBufferView view) {
    const std::size_t elements = view.bytes / width_;
    if (counts.empty()) {
      if (elements % size_ != 0) {
        return refuse(operation_, "{}: {} elements are not divisible by {} members; give {}", view_field,
                      elements, size_, field);
      }
      counts = PartCounts::even(elements / size_, size_);
      return {};
    }
    if (counts.size() != size_) {
      return refuse(operation_, "{}: expected {} numbers, one per member, found {}", field, size_,
                    counts.size());
    }
    if (counts.total() != elements) {
      return refuse(operation_, "{}: expected {} elements, the sum of {}, found {}", view_field,
                    counts.total(), field, elements);
    }
    return {};
  }

  Operation& operation_;
  std::size_t index_;
  std::size_t size_;
  std::size_t width_;
};

std::optional<std::string> differ(std::string_view field, std::string_view found, core::Rank who,
                                  std::string_view expected, core::Rank first) {
  if (found == expected) return std::nullopt;
  return fmt::format("rank {} posted {} {}, but rank {} posted {}", who.value, field, found, first.value,
                     expected);
}

std::optional<std::string> differ(const std::string& field, std::size_t found, core::Rank who,
                                  std::size_t expected, core::Rank first) {
  if (found == expected) return std::nullopt;
  return differ(field, std::to_string(found), who, std::to_string(expected), first);
}

std::optional<std::string> find_difference(const Signature& found, core::Rank who, const Signature& expected,
                                           core::Rank first) {
  if (auto text = differ("kind", name_of(found.kind), who, name_of(expected.kind), first)) return text;
  if (found.kind == OperationKind::barrier) return std::nullopt;
  if (auto text = differ("dtype", core::name_of(found.dtype), who, core::name_of(expected.dtype), first)) {
    return text;
  }
  if (reduces(found.kind)) {
    if (auto text = differ("reduce", name_of(found.reduce), who, name_of(expected.reduce), first))
      return text;
  }
  if (found.kind == OperationKind::broadcast) {
    if (auto text = differ("peer", std::to_string(found.peer), who, std::to_string(expected.peer), first)) {
      return text;
    }
  }
  if (auto text = differ("elements", found.elements, who, expected.elements, first)) return text;
  if (found.kind == OperationKind::all_to_all) return std::nullopt;
  const bool gathers = found.kind == OperationKind::all_gather;
  const auto& counts = gathers ? found.input_counts : found.output_counts;
  const auto& other = gathers ? expected.input_counts : expected.output_counts;
  if (counts.is_even() && other.is_even() && counts[0] == other[0]) return std::nullopt;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == other[i]) continue;
    const auto field = fmt::format("{}[{}]", gathers ? "input_counts" : "output_counts", i);
    return differ(field, counts[i], who, other[i], first);
  }
  return std::nullopt;
}

/// To a few receivers at a time, because each has memory of its own.
std::optional<std::string> find_uneven_exchange(std::span<const Signature> signatures,
                                                std::span<const core::Rank> members) {
  constexpr std::size_t kReceivers = 64;
  const auto usual = signatures[0].input_counts[0];
  const auto is_usual = [&](PartCountsView counts) { return counts.is_even() && counts[0] == usual; };
  const auto is_alike = [&](const Signature& s) {
    return is_usual(s.input_counts) && is_usual(s.output_counts);
  };
  if (std::ranges::all_of(signatures, is_alike)) return std::nullopt;
  for (std::size_t first = 0; first < signatures.size(); first += kReceivers) {
    const std::size_t end = std::min(first + kReceivers, signatures.size());
    for (std::size_t from = 0; from < signatures.size(); ++from) {
      for (std::size_t to = first; to < end; ++to) {
        const auto sent = signatures[from].input_counts[to], expected = signatures[to].output_counts[from];
        if (sent == expected) continue;
        return uneven_exchange({members[from], from, sent}, {members[to], to, expected});
      }
    }
  }
  return std::nullopt;
}

}  // namespace

bool reduces(OperationKind kind) noexcept {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce_scatter;
}

Result<Operation> prepare(Operation operation, int index, int size) {
  TRY(Inspection(operation, index, size).run());
  return operation;
}

Accesses accesses_of(const Operation& operation) {
  Accesses accesses{{operation.input}, {}};
  const auto& [input, output] = std::tie(operation.input, operation.output);
  const bool is_copied_out =
      operation.kind == OperationKind::all_gather || operation.kind == OperationKind::broadcast;
  if (is_copied_out && overlap(input, output)) {
    // A member writes nothing over its own input, which is in its place among the others'.
    const auto before = static_cast<std::size_t>(input.data - output.data);
    const auto end = before + input.bytes;
    accesses.writes = {output.subview(0, before), output.subview(end, output.bytes - end)};
    return accesses;
  }
  if (!operation.rows.output) {
    accesses.writes.push_back(output);
    return accesses;
  }
  const std::size_t bytes = operation.rows.elements * core::size_of(operation.dtype);
  for (const std::int64_t row : *operation.rows.output)
    accesses.writes.push_back(output.subview(static_cast<std::size_t>(row) * bytes, bytes));
  return accesses;
}

void declare(StreamQueue& stream, const Operation& operation) {
  if (auto* order = stream.order()) order->task(name_of(operation.kind), accesses_of(operation));
}

Result<std::vector<Posting>> prepare(std::vector<Posting> postings, int index, int size) {
  for (Posting& posting : postings) {
    const OperationKind kind = posting.operation.kind;
    if (kind != OperationKind::send && kind != OperationKind::receive) {
      return core::fail(Errc::invalid_argument, "post_together: expected messages, found {}; post it alone",
                        name_of(kind));
    }
    posting.operation = TRY(prepare(std::move(posting.operation), index, size));
  }
  return postings;
}

Result<std::vector<std::shared_ptr<OperationStatus>>> Group::post_together(std::vector<Posting> postings) {
  postings = TRY(prepare(std::move(postings), index(), size()));
  std::vector<std::shared_ptr<OperationStatus>> statuses;
  for (Posting& posting : postings) {
    statuses.push_back(TRY(post(std::move(posting.operation), posting.stream)));
  }
  return statuses;
}

Signature signature_of(const Operation& operation) {
  Signature signature{.kind = operation.kind,
                      .dtype = operation.dtype,
                      .reduce = operation.reduce,
                      .peer = operation.peer,
                      .input_counts = operation.input_counts,
                      .output_counts = operation.output_counts};
  if (operation.input_counts.empty() && operation.output_counts.empty()) {
    signature.elements =
        std::max(operation.input.bytes, operation.output.bytes) / core::size_of(operation.dtype);
  }
  return signature;
}

std::optional<std::string> find_disagreement(std::span<const Signature> signatures,
                                             std::span<const core::Rank> members) {
  for (std::size_t i = 1; i < signatures.size(); ++i) {
    if (auto text = find_difference(signatures[i], members[i], signatures[0], members[0])) return text;
  }
  const bool is_exchange = signatures[0].kind == OperationKind::all_to_all;
  if (is_exchange && !signatures[0].input_counts.empty()) return find_uneven_exchange(signatures, members);
  return std::nullopt;
}

std::string uneven_exchange(const ExchangeSide& from, const ExchangeSide& to) {
  return fmt::format("rank {} posted input_counts[{}] {}, but rank {} posted output_counts[{}] {}",
                     from.rank.value, to.index, from.elements, to.rank.value, from.index, to.elements);
}

std::optional<std::string> find_disagreement(const Signature& send, core::Rank sender,
                                             const Signature& receive, core::Rank receiver) {
  if (auto text =
          differ("dtype", core::name_of(receive.dtype), receiver, core::name_of(send.dtype), sender)) {
    return text;
  }
  return differ("elements", receive.elements, receiver, send.elements, sender);
}

Result<int> index_of_self(const GroupOptions& options) {
  for (const std::string* text : {&options.job, &options.name}) {
    const bool plain = std::ranges::all_of(*text, [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
             c == '_';
    });
    if (!plain || text->empty()) {
      return core::fail(Errc::invalid_argument,
                        "group: expected job and name of letters, digits, '-' and '_', found '{}'", *text);
    }
  }
  auto sorted = options.members;
  if (!std::ranges::is_sorted(sorted)) std::ranges::sort(sorted);
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
    return core::fail(Errc::invalid_argument, "group '{}': members: rank {} is there twice", options.name,
                      twice->value);
  }
  const auto self = std::ranges::find(options.members, options.self);
  if (self == options.members.end()) {
    return core::fail(Errc::invalid_argument, "group '{}': self: rank {} is not among its {} members",
                      options.name, options.self.value, options.members.size());
  }
  return static_cast<int>(self - options.members.begin());
}

std::vector<std::size_t> offsets_of(PartCountsView counts) {
  std::vector<std::size_t> offsets(counts.size() + 1, 0);
  for (std::size_t i = 0; i < counts.size(); ++i) offsets[i + 1] = offsets[i] + counts[i];
  return offsets;
}

}  // namespace troupe::gpu
