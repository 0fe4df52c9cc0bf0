#include "gpu/collective/shared_memory/collectives.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/errors.hpp"
#include "gpu/collective/reduce.hpp"
#include "gpu/collective/row_cursor.hpp"
#include "gpu/collective/shared_memory/signature.hpp"
#include "gpu/copy_out.hpp"

namespace troupe::gpu {
namespace {

using core::Result;

// Up to this size every member reduces everything itself: one meeting instead of two.
constexpr std::size_t kDirectBytes = std::size_t{32} << 10;

// Results from this size on go past the caches, where they would not stay, and lines need not be read before
// they are written.
constexpr std::size_t kBeyondCaches = std::size_t{16} << 20;

/// One collective of one member. Every kind is a sequence of rounds: copy into the outbox, meet, take what is
/// needed from the inboxes; an all_to_all may go on between two members alone. The first meeting also brings
/// all signatures, and nothing is read before they are known to agree.
class Collective {
 public:
  Collective(Arena& arena, const Operation& operation, const OperationDeadline& deadline)
      : arena_(arena),
        operation_(operation),
        deadline_(deadline),
        n_(static_cast<std::size_t>(arena.size())),
        self_(static_cast<std::size_t>(arena.index())),
        width_(core::size_of(operation.dtype)),
        staging_(arena.layout().staging_bytes),
        slot_(staging_ / n_ / ArenaLayout::kSlotAlignment * ArenaLayout::kSlotAlignment),
        sources_(n_) {}

  Result<void> run() {
    TRY(end_last_meeting());
    write_signature(signature_of(operation_), arena_.outbox());
    switch (operation_.kind) {
      case OperationKind::all_reduce:
        return operation_.input.bytes <= std::min(kDirectBytes, staging_) ? all_reduce_direct()
                                                                          : all_reduce();
      case OperationKind::reduce_scatter:
        return reduce_scatter();
      case OperationKind::all_gather:
        return all_gather();
      case OperationKind::broadcast:
        return broadcast();
      case OperationKind::all_to_all:
        return all_to_all();
      default:
        return meet();
    }
  }

 private:
  /// A range of bytes of an operation's buffer.
  struct Range {
    std::size_t begin = 0;
    std::size_t bytes = 0;
  };

  /// The bytes of `whole` that round `round` moves, if each round moves `step` bytes.
  static Range cut(Range whole, std::size_t round, std::size_t step) {
    const std::size_t begin = std::min(round * step, whole.bytes);
    return {whole.begin + begin, std::min(step, whole.bytes - begin)};
  }

  /// The number of rounds for the largest part; at least one, which brings the signatures.
  std::size_t rounds(PartCountsView counts, std::size_t step) const {
    const std::size_t most = counts.most() * width_;
    return std::max<std::size_t>(1, (most + step - 1) / step);
  }

  std::vector<Range> parts(PartCountsView counts) const {
    const auto offsets = offsets_of(counts);
    std::vector<Range> ranges;
    for (std::size_t i = 0; i < n_; ++i) ranges.push_back({offsets[i] * width_, counts[i] * width_});
    return ranges;
  }

  std::byte* outgoing() const { return arena_.outbox() + arena_.layout().signature_bytes(); }
  const std::byte* incoming(std::size_t member) const {
    return arena_.inbox(static_cast<int>(member)) + arena_.layout().signature_bytes();
  }

  static void copy(const std::byte* from, std::byte* to, std::size_t bytes) {
    if (bytes > 0 && from != to) std::memcpy(to, from, bytes);
  }
  /// What others take; a member alone writes for nobody.
  void put(Range range, std::size_t offset) const {
    if (n_ > 1) copy(operation_.input.data + range.begin, outgoing() + offset, range.bytes);
  }
  void take(std::size_t member, std::size_t offset, Range range) const {
    const std::byte* const from = incoming(member) + offset;
    std::byte* const to = operation_.output.data + range.begin;
    if (operation_.output.bytes < kBeyondCaches) return copy(from, to, range.bytes);
    copy_out({from, range.bytes}, {to, range.bytes});
  }

  /// The other members, beginning with the next one, so that not all members read the same one first.
  template <class Act>
  void for_each_other(Act act) const {
    for (std::size_t i = 1; i < n_; ++i) act((self_ + i) % n_);
  }

  /// Reduces all members' inputs in rank order: this member's from the input, the others' from their boxes at
  /// `offset`.
  void reduce(Range own, std::size_t offset, std::byte* output) {
    if (own.bytes == 0) return;
    for (std::size_t i = 0; i < n_; ++i) sources_[i] = incoming(i) + offset;
    sources_[self_] = operation_.input.data + own.begin;
    reduce_in_order(operation_.dtype, operation_.reduce, sources_, output, own.bytes / width_);
  }

  Result<void> meet() {
    arena_.arrive();
    return meet_others();
  }

  Result<void> meet_others() {
    TRY(arena_.wait_for_others(deadline_));
    return std::exchange(have_met_, true) ? Result<void>() : compare_signatures();
  }

  /// That of a broadcast whose root did not wait.
  Result<void> end_last_meeting() {
    TRY(arena_.wait_for_others(deadline_));
    return arena_.take_comparison() ? compare_signatures() : Result<void>();
  }

  Result<void> compare_signatures() {
    std::vector<Signature> signatures;
    for (int i = 0; i < arena_.size(); ++i) signatures.push_back(read_signature(arena_.inbox(i)));
    const auto sentence = find_disagreement(signatures, arena_.group().members);
    if (!sentence) return {};
    return tl::unexpected(arena_.declare(
        {core::Errc::mismatch,
         fmt::format("group '{}': {}; all members must post the same operations in the same order",
                     arena_.group().name, *sentence)}));
  }

  Result<void> all_reduce_direct() {
    const Range whole{0, operation_.input.bytes};
    put(whole, 0);
    TRY(meet());
    reduce(whole, 0, operation_.output.data);
    return {};
  }

  /// Block by block: each member reduces its share of the block, and then all exchange their shares.
  Result<void> all_reduce() {
    const std::size_t block = slot_ * n_;
    for (std::size_t begin = 0; begin < operation_.input.bytes; begin += block) {
      const std::size_t bytes = std::min(block, operation_.input.bytes - begin);
      const std::size_t share = ArenaLayout::align((bytes + n_ - 1) / n_, 64);
      const auto share_of = [&](std::size_t member) { return cut({begin, bytes}, member, share); };
      for_each_other([&](std::size_t member) { put(share_of(member), member * slot_); });
      TRY(meet());
      const Range own = share_of(self_);
      reduce(own, self_ * slot_, operation_.output.data + own.begin);
      if (n_ > 1) copy(operation_.output.data + own.begin, outgoing(), own.bytes);
      TRY(meet());
      for_each_other([&](std::size_t member) { take(member, 0, share_of(member)); });
    }
    return {};
  }

  Result<void> reduce_scatter() {
    const auto whole = parts(operation_.output_counts);
    for (std::size_t round = 0; round < rounds(operation_.output_counts, slot_); ++round) {
      for_each_other([&](std::size_t member) { put(cut(whole[member], round, slot_), member * slot_); });
      TRY(meet());
      reduce(cut(whole[self_], round, slot_), self_ * slot_, operation_.output.data + round * slot_);
    }
    return {};
  }

  Result<void> all_gather() {
    const auto whole = parts(operation_.input_counts);
    copy(operation_.input.data, operation_.output.data + whole[self_].begin, whole[self_].bytes);
    for (std::size_t round = 0; round < rounds(operation_.input_counts, staging_); ++round) {
      put(cut({0, operation_.input.bytes}, round, staging_), 0);
      TRY(meet());
      for_each_other([&](std::size_t member) { take(member, 0, cut(whole[member], round, staging_)); });
    }
    return {};
  }

  Result<void> broadcast() {
    const auto root = static_cast<std::size_t>(operation_.peer);
    const std::size_t bytes = self_ == root ? operation_.input.bytes : operation_.output.bytes;
    for (std::size_t begin = 0; begin == 0 || begin < bytes; begin += staging_) {
      const Range range{begin, std::min(staging_, bytes - begin)};
      if (self_ == root) {
        if (begin > 0) TRY(meet_others());
        put(range, 0);
        arena_.arrive();
      } else {
        TRY(meet());
        take(root, 0, range);
      }
    }
    if (self_ == root && !have_met_) arena_.leave_comparison();
    return {};
  }

  Result<void> all_to_all() {
    const auto from = parts(operation_.input_counts);
    const auto to = parts(operation_.output_counts);
    copy_rows(input_from(operation_, from[self_].begin), output_from(operation_, to[self_].begin),
              to[self_].bytes);
    TRY(exchange_slots(from, to, 0));
    // Only the signatures tell what there is between any two members.
    std::vector<Signature> signatures;
    for (int i = 0; i < arena_.size(); ++i) signatures.push_back(read_signature(arena_.inbox(i)));
    if (is_poured(signatures)) return pour(from, to);
    std::size_t last = 1;
    for (const auto& signature : signatures) last = std::max(last, rounds(signature.input_counts, slot_));
    for (std::size_t round = 1; round < last; ++round) TRY(exchange_slots(from, to, round));
    return {};
  }

  Result<void> exchange_slots(const std::vector<Range>& from, const std::vector<Range>& to,
                              std::size_t round) {
    for_each_other([&](std::size_t member) {
      const Range range = cut(from[member], round, slot_);
      copy_rows(input_from(operation_, range.begin), piece(outgoing() + member * slot_), range.bytes);
    });
    TRY(meet());
    for_each_other([&](std::size_t member) {
      const Range range = cut(to[member], round, slot_);
      copy_rows(piece(incoming(member) + self_ * slot_), output_from(operation_, range.begin), range.bytes);
    });
    return {};
  }

  /// Whether no member both gives and takes more than a slot, and none gives more than that to several: then
  /// nobody has to meet all others for it. So it is where a member that lost its memory is given that of
  /// another.
  bool is_poured(const std::vector<Signature>& signatures) const {
    std::vector<std::size_t> givers(n_), takers(n_);
    for (std::size_t giver = 0; giver < n_; ++giver) {
      for (std::size_t taker = 0; taker < n_; ++taker) {
        if (giver == taker || signatures[giver].input_counts[taker] * width_ <= slot_) continue;
        givers[taker] += 1;
        takers[giver] += 1;
      }
    }
    for (std::size_t i = 0; i < n_; ++i)
      if (takers[i] > 1 || (takers[i] > 0 && givers[i] > 0)) return false;
    return true;
  }

  /// What is left after the first slots.
  Result<void> pour(const std::vector<Range>& from, const std::vector<Range>& to) {
    const auto rest = [this](Range whole) { return Range{whole.begin + slot_, whole.bytes - slot_}; };
    for (std::size_t i = 1; i < n_; ++i) {
      const std::size_t member = (self_ + i) % n_;
      if (from[member].bytes > slot_) TRY(give(member, rest(from[member])));
      if (to[member].bytes > slot_) TRY(drain(member, rest(to[member])));
    }
    return {};
  }

  /// Through the halves of the outbox, alternately.
  Result<void> give(std::size_t taker, Range whole) {
    auto& channel = arena_.channel(static_cast<int>(self_), static_cast<int>(taker));
    const auto base = channel.poured.value.load();
    const auto chunks = static_cast<std::uint32_t>((whole.bytes + half() - 1) / half());
    for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
      if (chunk >= 2) TRY(await(channel.drained, base + chunk - 1, taker));
      const Range range = cut(whole, chunk, half());
      copy_rows(input_from(operation_, range.begin), piece(outgoing() + chunk % 2 * half()), range.bytes);
      publish(channel.poured, base + chunk + 1);
    }
    return await(channel.drained, base + chunks, taker);
  }

  Result<void> drain(std::size_t giver, Range whole) {
    auto& channel = arena_.channel(static_cast<int>(giver), static_cast<int>(self_));
    const auto base = channel.drained.value.load();
    const auto chunks = static_cast<std::uint32_t>((whole.bytes + half() - 1) / half());
    const std::byte* box = arena_.outbox_of(static_cast<int>(giver)) + arena_.layout().signature_bytes();
    for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
      TRY(await(channel.poured, base + chunk + 1, giver));
      const Range range = cut(whole, chunk, half());
      copy_rows(piece(box + chunk % 2 * half()), output_from(operation_, range.begin), range.bytes);
      publish(channel.drained, base + chunk + 1);
    }
    return {};
  }

  std::size_t half() const {
    return staging_ / 2 / ArenaLayout::kSlotAlignment * ArenaLayout::kSlotAlignment;
  }

  Result<void> await(SharedWord& word, std::uint32_t target, std::size_t member) {
    return arena_.await(word, target, deadline_,
                        [member](int peer) { return static_cast<std::size_t>(peer) == member; });
  }

  Arena& arena_;
  const Operation& operation_;
  const OperationDeadline& deadline_;
  const std::size_t n_;
  const std::size_t self_;
  const std::size_t width_;
  const std::size_t staging_;
  const std::size_t slot_;  // bytes of staging for each of n members
  std::vector<const std::byte*> sources_;
  bool have_met_ = false;
};

}  // namespace

Result<void> run_collective(Arena& arena, const Operation& operation, const OperationDeadline& deadline) {
  return Collective(arena, operation, deadline).run();
}

}  // namespace troupe::gpu
