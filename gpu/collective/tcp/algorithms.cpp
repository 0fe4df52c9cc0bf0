#include "gpu/collective/tcp/algorithms.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "core/errors.hpp"
#include "gpu/collective/operations.hpp"
#include "gpu/collective/reduce.hpp"
#include "gpu/collective/row_cursor.hpp"
#include "gpu/collective/tcp/agreement.hpp"

namespace troupe::gpu {
namespace {

using core::Result;

// Up to this size every member sends everything to all others: one exchange instead of two. With two members
// that is no more on the wire.
constexpr std::size_t kDirectBytes = std::size_t{16} << 10;

// What a member receives from all others combined before it is reduced, and how many pieces of a share are on
// the way at the same time.
constexpr std::size_t kReducedBytes = std::size_t{4} << 20;
constexpr std::size_t kPiecesAhead = 4;
constexpr std::size_t kLeastPiece = std::size_t{32} << 10;
static_assert(kReducedBytes / kPiecesAhead >= Connection::kEagerBytes);

constexpr std::size_t kFewMeet = 8;

// Below the top byte: the operation's number, then its phase.
constexpr std::uint64_t kCollectiveSlots = std::uint64_t{0x80} << 56;
constexpr std::uint64_t kMessageSlots = std::uint64_t{0x81} << 56;

struct Range {
  std::size_t begin = 0;
  std::size_t bytes = 0;
};

class TcpCollective {
 public:
  TcpCollective(Mesh& mesh, const Operation& operation, std::uint64_t sequence,
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
    TRY(mesh_.begin_operation(slot_, operation_, deadline_));
    if (operation_.kind != OperationKind::all_to_all) words_.push_back(Agreement::words_to(0, operation_));
    // Members that have nothing to send meet, so that one which has something is found.
    if (is_empty()) return barrier();
    switch (operation_.kind) {
      case OperationKind::all_reduce:
        if (whole.bytes <= kDirectBytes)
          return reduce(std::vector<Range>(n_, whole), operation_.output.data, After::nothing);
        return all_reduce();
      case OperationKind::reduce_scatter:
        return reduce(parts(operation_.output_counts), operation_.output.data, After::nothing);
      case OperationKind::all_gather: {
        const auto ranges = parts(operation_.input_counts);
        std::vector<PassagePtr> passages;
        TRY(gather(ranges, passages));
        copy(operation_.input.data, operation_.output.data + ranges[self_].begin, whole.bytes);
        return mesh_.wait(passages, deadline_);
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
  bool is_empty() const {
    return operation_.kind != OperationKind::all_to_all && operation_.input.bytes == 0 &&
           operation_.output.bytes == 0;
  }

  static void copy(const std::byte* from, std::byte* to, std::size_t bytes) {
    if (bytes > 0 && from != to) std::memcpy(to, from, bytes);
  }

  std::vector<Range> parts(PartCountsView counts) const {
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
  /// The first to this member: with what is said of the operation.
  Transfer first_to(std::size_t member, Range range) const {
    Transfer transfer = input_to(member, range);
    transfer.words = &words_[words_.size() == 1 ? 0 : member];
    return transfer;
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

  enum class After : std::uint8_t { nothing, gather };

  /// ranges[j] of the inputs is what member j reduces; this one writes its result to `output`. Afterwards
  /// perhaps all members get all results. Pieces of the ranges are on the way while one that has arrived is
  /// reduced.
  Result<void> reduce(const std::vector<Range>& ranges, std::byte* output, After after) {
    std::size_t longest = 0;
    for (const Range& range : ranges) longest = std::max(longest, range.bytes);
    const Range own = ranges[self_];
    choose_pieces(longest, own.bytes);
    std::vector<PassagePtr> gathered;
    if (after == After::gather) TRY(receive_results(ranges, gathered));
    std::deque<std::vector<PassagePtr>> on_the_way;
    std::size_t posted = 0;
    for (std::size_t done = 0; done < longest; done += piece_) {
      for (; posted < std::min(longest, done + kPiecesAhead * piece_); posted += piece_)
        TRY(post_piece(ranges, posted, on_the_way.emplace_back()));
      TRY(mesh_.wait(on_the_way.front(), deadline_));
      on_the_way.pop_front();
      const Range part = part_of(own, done);
      if (part.bytes == 0) continue;
      std::byte* const result = output + (part.begin - own.begin);
      std::vector<const std::byte*> sources(n_, operation_.input.data + part.begin);
      for_each_other([&](std::size_t member) { sources[member] = place_of(member, done); });
      reduce_in_order(operation_.dtype, operation_.reduce, sources, result, part.bytes / width_);
      if (after == After::gather) TRY(send_result(result, part.bytes, gathered));
    }
    return mesh_.wait(gathered, deadline_);
  }

  /// All members choose alike, but for the memory, which is for this member's own range.
  void choose_pieces(std::size_t longest, std::size_t own) {
    constexpr std::size_t kStep = std::size_t{8} << 10;
    const auto whole_steps = [](std::size_t bytes) {
      return std::max(bytes / kStep, std::size_t{1}) * kStep;
    };
    const std::size_t most =
        std::min(whole_steps(kReducedBytes / kPiecesAhead / n_), Connection::kEagerBytes);
    piece_ = std::clamp(whole_steps(longest / kPiecesAhead), std::min(kLeastPiece, most), most);
    stride_ = std::min(piece_, own);
    const std::size_t needed = std::min(own + stride_, kPiecesAhead * piece_);
    if (received_.size() < (n_ - 1) * needed) received_.resize((n_ - 1) * needed);
  }

  Range part_of(Range range, std::size_t from) const {
    const std::size_t skipped = std::min(from, range.bytes);
    return {range.begin + skipped, std::min(piece_, range.bytes - skipped)};
  }

  /// Where a member's piece of this member's range is received that begins `from` there.
  std::byte* place_of(std::size_t member, std::size_t from) const {
    const std::size_t other = (member + n_ - self_ - 1) % n_;
    return received_.data() + (from / piece_ % kPiecesAhead * (n_ - 1) + other) * stride_;
  }

  Result<void> post_piece(const std::vector<Range>& ranges, std::size_t from, std::vector<PassagePtr>& into) {
    std::vector<Transfer> receives;
    std::vector<Transfer> sends;
    const std::size_t own = part_of(ranges[self_], from).bytes;
    for_each_other([&](std::size_t member) {
      receives.push_back({static_cast<int>(member), slot_, place_of(member, from), own});
      const Range part = part_of(ranges[member], from);
      sends.push_back(from == 0 ? first_to(member, part) : input_to(member, part));
    });
    return mesh_.post(receives, sends, into);
  }

  Result<void> receive_results(const std::vector<Range>& ranges, std::vector<PassagePtr>& into) {
    std::vector<Transfer> receives;
    for_each_other([&](std::size_t member) {
      for (std::size_t from = 0; from < ranges[member].bytes; from += piece_) {
        receives.push_back(output_from(member, part_of(ranges[member], from)));
        ++receives.back().slot;
      }
    });
    return mesh_.post(receives, {}, into);
  }

  Result<void> send_result(std::byte* result, std::size_t bytes, std::vector<PassagePtr>& into) {
    std::vector<Transfer> sends;
    for_each_other([&](std::size_t member) {
      sends.push_back({static_cast<int>(member), slot_ + 1, result, bytes});
    });
    return mesh_.post({}, sends, into);
  }

  /// Begins to send this member's input to all and to receive theirs.
  Result<void> gather(const std::vector<Range>& ranges, std::vector<PassagePtr>& into) {
    std::vector<Transfer> receives;
    std::vector<Transfer> sends;
    for_each_other([&](std::size_t member) {
      receives.push_back(output_from(member, ranges[member]));
      sends.push_back(first_to(member, {0, operation_.input.bytes}));
    });
    return mesh_.post(receives, sends, into);
  }

  Result<void> all_reduce() {
    const std::size_t elements = operation_.input.bytes / width_;
    std::vector<std::size_t> counts(n_, elements / n_);
    counts.back() += elements % n_;
    const auto shares = parts(counts);
    return reduce(shares, operation_.output.data + shares[self_].begin, After::gather);
  }

  Result<void> broadcast() {
    const auto root = static_cast<std::size_t>(operation_.peer);
    // The root need not wait to hear who takes it for one.
    if (self_ != root)
      return exchange({output_from(root, {0, operation_.output.bytes})}, {first_to(root, {})});
    std::vector<Transfer> sends;
    for_each_other([&](std::size_t member) {
      sends.push_back(first_to(member, {0, operation_.input.bytes}));
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
    for (std::size_t member = 0; member < n_; ++member)
      words_.push_back(Agreement::words_to(static_cast<int>(member), operation_));
    for_each_other([&](std::size_t member) {
      receives.push_back(output_from(member, to[member]));
      sends.push_back(first_to(member, from[member]));
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

  /// Few members hear from all others at once. Among many, in round k each hears from the one 2^k before it;
  /// after log2(n) rounds, indirectly from all.
  Result<void> barrier() {
    std::byte sent{};
    std::vector<std::byte> heard(n_);
    const auto to = [&](std::size_t member) {
      return Transfer{static_cast<int>(member), slot_, &sent, 1, &words_.front()};
    };
    const auto from = [&](std::size_t member) {
      return Transfer{static_cast<int>(member), slot_, &heard[member], 1};
    };
    if (n_ <= kFewMeet) {
      std::vector<Transfer> receives;
      std::vector<Transfer> sends;
      for_each_other([&](std::size_t member) {
        receives.push_back(from(member));
        sends.push_back(to(member));
      });
      return exchange(receives, sends);
    }
    for (std::size_t distance = 1; distance < n_; distance *= 2)
      TRY(exchange({from((self_ + n_ - distance) % n_)}, {to((self_ + distance) % n_)}));
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
  std::vector<std::string> words_;  ///< to all alike, or by member
  std::size_t piece_ = 0;           ///< bytes of a range that go together
  std::size_t stride_ = 0;          ///< of what is received of them
};

}  // namespace

Result<void> MeshAlgorithms::run(const Operation& operation, std::uint64_t sequence,
                                 const OperationDeadline& deadline) {
  const std::uint64_t slot = kMessageSlots | (sequence & 0xffffffffffff) << 8;
  if (operation.kind == OperationKind::send) {
    const std::string words = Agreement::words_to(operation.peer, operation);
    const Transfer send{operation.peer, slot, const_cast<std::byte*>(operation.input.data),
                        operation.input.bytes, &words};
    return mesh_.exchange({}, std::span(&send, 1), deadline);
  }
  if (operation.kind == OperationKind::receive) {
    TRY(mesh_.begin_operation(slot, operation, deadline));
    const Transfer receive{operation.peer, slot, operation.output.data, operation.output.bytes};
    return mesh_.exchange(std::span(&receive, 1), {}, deadline);
  }
  return TcpCollective(mesh_, operation, sequence, deadline, received_).run();
}

}  // namespace troupe::gpu
