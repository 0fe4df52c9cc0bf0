#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.hpp"
#include "gpu/collective/operations.hpp"

namespace troupe::gpu {

/// Whether the members of a group post the same operations. Each says what it posts to each other member
/// right before the first bytes that it sends there for it, or instead of them if there are none; so it costs
/// no round trip. Operations are known by their slot (Transfer), the low byte of which does not count.
/// Guarded by the mesh.
class Agreement {
 public:
  Agreement() = default;  ///< nothing is said
  Agreement(std::vector<core::Rank> members, int self);

  /// What the member says to `peer` of a prepared operation.
  static std::string words_to(int peer, const Operation& operation);
  /// At most this many bytes.
  std::size_t most_bytes() const { return members_.empty() ? 0 : kWordsBytes + 8 * members_.size(); }

  /// This member begins an operation: a collective, or the receive of a message.
  void begin(std::uint64_t slot, const Operation& operation);
  /// A member has said this. False if these are no words.
  [[nodiscard]] bool hear(int peer, std::uint64_t slot, std::string_view words);
  /// The first disagreement, as find_disagreement() tells it among the members that have said something.
  const std::optional<std::string>& found() const { return found_; }

 private:
  struct Words {
    OperationKind kind = OperationKind::barrier;
    core::DType dtype = core::DType::f32;
    ReduceOp reduce = ReduceOp::sum;
    bool has_counts = false;
    std::uint16_t peer = 0;
    /// Those of Signature; for parts, the elements of each if all have as many; for an exchange, the elements
    /// that go to the member that hears it.
    std::uint64_t elements = 0;

    friend bool operator==(const Words&, const Words&) = default;
  };
  /// The form in which they are sent, in a string that needs no memory of its own; counts may follow.
  static constexpr std::size_t kWordsBytes = 14;
  static std::string text_of(const Words& words);
  static std::optional<Words> read_words(std::string_view text);
  struct Said {
    std::uint64_t slot = 0;  ///< 0: nothing was said
    Words words;
    std::vector<std::size_t> counts;
  };
  static constexpr std::size_t kRemembered = 16;
  /// What is to be compared, in the order of slots: this member's own operations, and those of others that
  /// are ahead of it.
  struct Series {
    std::array<Said, kRemembered> own;    ///< the last ones, by slot
    std::uint64_t last = 0;               ///< slot of the last own one
    std::vector<std::deque<Said>> ahead;  ///< by member
  };

  static Words words_of(const Operation& operation);
  static PartCountsView counts_of(const Operation& operation);
  static Said& place_in(Series& series, std::uint64_t slot) { return series.own[(slot >> 8) % kRemembered]; }
  Signature signature_of(const Said& said) const;
  void compare(int peer, const Said& theirs, const Said& own);
  std::optional<std::string> find_among_all(const Said& own) const;
  std::optional<std::string> find_in_message(int peer, const Said& theirs, const Said& own) const;

  std::vector<core::Rank> members_;
  std::size_t self_ = 0;
  Series collectives_;
  std::vector<Series> messages_;  ///< from each member
  std::vector<Said> heard_;       ///< of collectives, the last by member
  std::optional<std::string> found_;
};

}  // namespace troupe::gpu
