#include "gpu/collective/gloo/algorithms.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/errors.hpp"
#include "gpu/collective/operations.hpp"
#include "gpu/collective/reduce.hpp"
#include "gpu/collective/row_cursor.hpp"

namespace troupe::gpu {
namespace {

using core::Result;

// Up to this size every member sends everything to all others: one exchange instead of two.
constexpr std::size_t kDirectMessageBytes = std::size_t{16} << 10;

// How much a member receives from all others combined before it reduces.
constexpr std::size_t kReducedBytes = std::size_t{4} << 20;

// Gloo's own collectives use top bytes 1 to 8. Below the top byte: the operation's number, then its phase.
constexpr std::uint64_t kCollectiveSlots = std::uint64_t{0x80} << 56;
constexpr std::uint64_t kMessageSlots = std::uint64_t{0x81} << 56;

struct Range {
  std::size_t begin = 0;
  std::size_t bytes = 0;
};

class GlooCollective {
 public:
  GlooCollective(Mesh& mesh, const Operation& operation, std::uint64_t sequence,
                 const OperationDeadline& deadline, std::vector<std::byte>& received)
      : mesh_(mesh),
        operation_(operation),
        deadline_(deadline),
        n_(mesh.group().members.size()),
        self_(static_cast<std::size_t>(mesh.index())),
        width_(core::size_of(operation.dtype)),
        slot_(kCollectiveSlots | (sequence & 0xffffffffffff) << 8),
        received_(received) {}

  Result<void> run() {
    const Range whole{0, operation_.input.bytes};
    switch (operation_.kind) {
      case OperationKind::all_reduce:
        if (whole.bytes <= kDirectMessageBytes)
          return reduce(std::vector<Range>(n_, whole), operation_.output.data);
        return all_reduce();
      case OperationKind::reduce_scatter:
        return reduce(parts(operation_.output_counts), operation_.output.data);
      case OperationKind::all_gather: {
        const auto ranges = parts(operation_.input_counts);
        copy(operation_.input.data, operation_.output.data + ranges[self_].begin, whole.bytes);
        return gather(ranges);
      }
      case OperationKind::broadcast:
        return broadcast();
      case OperationKind::all_to_all:
        return all_to_all();
      default:
        return barrier();
    }
  }

 private:
  static void copy(const std::byte* from, std::byte* to, std::size_t bytes) {
    if (bytes > 0 && from != to) std::memcpy(to, from, bytes);
  }

  std::vector<Range> parts(std::span<const std::size_t> counts) const {
    const auto offsets = offsets_of(counts);
    std::vector<Range> ranges;
    for (std::size_t i = 0; i < n_; ++i) ranges.push_back({offsets[i] * width_, counts[i] * width_});
    return ranges;
  }

  template <class Act>
  void for_each_other(Act act) const {
    for (std::size_t i = 1; i < n_; ++i) act((self_ + i) % n_);
  }

  Transfer input_to(std::size_t member, Range range) const {
    // Sending only reads.
    return {static_cast<int>(member), slot_, const_cast<std::byte*>(operation_.input.data) + range.begin,
            range.bytes};
  }
  Transfer output_from(std::size_t member, Range range) const {
    return {static_cast<int>(member), slot_, operation_.output.data + range.begin, range.bytes};
  }

  Result<void> exchange(const std::vector<Transfer>& receives, const std::vector<Transfer>& sends) {
    auto result = mesh_.exchange(receives, sends, deadline_);
    // If there are many phases, they may share a number: members are never two phases apart.
    slot_ = (slot_ & ~std::uint64_t{0xff}) | ((slot_ + 1) & 0xff);
    return result;
  }

  /// Sends ranges[j] of the input to member j; received data are reduced with this member's own range, in
  /// rank order, into `output`. In pieces, to limit the data received but not yet reduced.
  Result<void> reduce(const std::vector<Range>& ranges, std::byte* output) {
    const std::size_t piece =
        std::max(kReducedBytes / n_ / kDirectMessageBytes, std::size_t{1}) * kDirectMessageBytes;
    std::size_t longest = 0;
    for (const Range& range : ranges) longest = std::max(longest, range.bytes);
    for (std::size_t done = 0; done == 0 || done < longest; done += piece) {
      std::vector<Range> parts = ranges;
      for (Range& part : parts) {
        const std::size_t skipped = std::min(done, part.bytes);
        part = {part.begin + skipped, std::min(piece, part.bytes - skipped)};
      }
      TRY(reduce_piece(parts, output + std::min(done, ranges[self_].bytes)));
    }
    return {};
  }

  Result<void> reduce_piece(const std::vector<Range>& ranges, std::byte* output) {
    const Range own = ranges[self_];
    if (received_.size() < n_ * own.bytes) received_.resize(n_ * own.bytes);
    std::vector<Transfer> receives;
    std::vector<Transfer> sends;
    for_each_other([&](std::size_t member) {
      receives.push_back({static_cast<int>(member), slot_, received_.data() + member * own.bytes, own.bytes});
      sends.push_back(input_to(member, ranges[member]));
    });
    TRY(exchange(receives, sends));
    if (own.bytes == 0) return {};
    std::vector<const std::byte*> sources;
    for (std::size_t i = 0; i < n_; ++i) sources.push_back(received_.data() + i * own.bytes);
    sources[self_] = operation_.input.data + own.begin;
    reduce_in_order(operation_.dtype, operation_.reduce, sources, output, own.bytes / width_);
    return {};
  }

  /// Sends this member's range of the output to all and receives theirs.
  Result<void> gather(const std::vector<Range>& ranges) {
    std::vector<Transfer> receives;
    std::vector<Transfer> sends;
    for_each_other([&](std::size_t member) {
      receives.push_back(output_from(member, ranges[member]));
      sends.push_back(output_from(member, ranges[self_]));
    });
    return exchange(receives, sends);
  }

  Result<void> all_reduce() {
    const std::size_t elements = operation_.input.bytes / width_;
    std::vector<std::size_t> counts(n_, elements / n_);
    counts.back() += elements % n_;
    const auto shares = parts(counts);
    TRY(reduce(shares, operation_.output.data + shares[self_].begin));
    return gather(shares);
  }

  Result<void> broadcast() {
    const auto root = static_cast<std::size_t>(operation_.peer);
    if (self_ != root) return exchange({output_from(root, {0, operation_.output.bytes})}, {});
    std::vector<Transfer> sends;
    for_each_other([&](std::size_t member) {
      sends.push_back(input_to(member, {0, operation_.input.bytes}));
    });
    return exchange({}, sends);
  }

  Result<void> all_to_all() {
    const auto from = parts(operation_.input_counts);
    const auto to = parts(operation_.output_counts);
    copy_rows(gpu::input_from(operation_, from[self_].begin), gpu::output_from(operation_, to[self_].begin),
              to[self_].bytes);
    // Transfers need contiguous memory: rows of lists are gathered first, and scattered at the end.
    const auto& rows = operation_.rows;
    std::vector<std::byte> packed(rows.input ? from.back().begin + from.back().bytes : 0);
    std::vector<std::byte> arrived(rows.output ? to.back().begin + to.back().bytes : 0);
    std::vector<Transfer> receives;
    std::vector<Transfer> sends;
    for_each_other([&](std::size_t member) {
      receives.push_back(output_from(member, to[member]));
      sends.push_back(input_to(member, from[member]));
      if (rows.output) receives.back().data = arrived.data() + to[member].begin;
      if (!rows.input) return;
      sends.back().data = packed.data() + from[member].begin;
      copy_rows(gpu::input_from(operation_, from[member].begin), piece(packed.data() + from[member].begin),
                from[member].bytes);
    });
    TRY(exchange(receives, sends));
    for_each_other([&](std::size_t member) {
      if (!rows.output) return;
      copy_rows(piece(std::as_const(arrived).data() + to[member].begin),
                gpu::output_from(operation_, to[member].begin), to[member].bytes);
    });
    return {};
  }

  /// In round k each member hears from the one 2^k before it; after log2(n) rounds, indirectly from all.
  Result<void> barrier() {
    std::byte sent{};
    std::byte heard{};
    for (std::size_t distance = 1; distance < n_; distance *= 2) {
      const auto next = static_cast<int>((self_ + distance) % n_);
      const auto previous = static_cast<int>((self_ + n_ - distance) % n_);
      TRY(exchange({{previous, slot_, &heard, 1}}, {{next, slot_, &sent, 1}}));
    }
    return {};
  }

  Mesh& mesh_;
  const Operation& operation_;
  const OperationDeadline& deadline_;
  const std::size_t n_;
  const std::size_t self_;
  const std::size_t width_;
  std::uint64_t slot_;
  std::vector<std::byte>& received_;
};

}  // namespace

Result<void> MeshAlgorithms::run(const Operation& operation, std::uint64_t sequence,
                                 const OperationDeadline& deadline) {
  const std::uint64_t slot = kMessageSlots | sequence;
  if (operation.kind == OperationKind::send) {
    const Transfer send{operation.peer, slot, const_cast<std::byte*>(operation.input.data),
                        operation.input.bytes};
    return mesh_.exchange({}, std::span(&send, 1), deadline);
  }
  if (operation.kind == OperationKind::receive) {
    const Transfer receive{operation.peer, slot, operation.output.data, operation.output.bytes};
    return mesh_.exchange(std::span(&receive, 1), {}, deadline);
  }
  return GlooCollective(mesh_, operation, sequence, deadline, received_).run();
}

}  // namespace troupe::gpu
