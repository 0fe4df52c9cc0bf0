#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>

#include "gpu/collective/tcp/agreement.hpp"

namespace troupe::gpu {

/// Any member, as the peer of a receive.
constexpr int kAnyMember = -1;

/// Bytes on their way to or from another member. Guarded by the mesh.
struct Passage {
  bool sends = false;
  int peer = 0;  ///< of a receive, perhaps kAnyMember until a message came for it
  std::uint64_t slot = 0;
  std::byte* data = nullptr;  ///< only read when sending
  std::size_t bytes = 0;
  std::uint64_t posted = 0;  ///< its number among the receives of the mesh
  bool is_any = false;       ///< it was posted for kAnyMember
  bool done = false;
};
using PassagePtr = std::shared_ptr<Passage>;

/// A message that came, or was announced, before its receive was posted.
struct EarlyMessage {
  int peer = 0;
  std::uint64_t slot = 0;
  std::size_t bytes = 0;
  std::uint64_t announced = 0;        ///< its number if only announced
  std::unique_ptr<std::byte[]> data;  ///< otherwise
  bool complete = false;              ///< all data are there
  PassagePtr passage;                 ///< a receive posted before they were
};
using EarlyMessagePtr = std::shared_ptr<EarlyMessage>;

/// Brings messages and receives together: of those of one member and slot, the first sent and the first
/// posted.
class Inbox {
 public:
  Agreement agreement;  ///< what members say of them

  /// The receive for a message that begins to arrive, or null.
  PassagePtr claim(int peer, std::uint64_t slot) {
    auto* const own = first(posted_, {slot, peer});
    auto* const any = first(posted_, {slot, kAnyMember});
    if (own == nullptr && any == nullptr) return nullptr;
    const bool is_own = any == nullptr || (own != nullptr && (*own)->posted < (*any)->posted);
    PassagePtr passage = is_own ? *own : *any;
    pop(posted_, {slot, is_own ? peer : kAnyMember});
    passage->peer = peer;
    return passage;
  }
  void keep(EarlyMessagePtr arrival) {
    const Key own{arrival->slot, arrival->peer};
    arrived_[own].push_back(arrival);
  }

  /// The message that waits for this receive, or null; the receive is then posted.
  EarlyMessagePtr collect(PassagePtr passage, int members) {
    passage->posted = ++posts_;
    const bool is_any = passage->peer == kAnyMember;
    for (int peer = is_any ? 0 : passage->peer; peer <= (is_any ? members - 1 : passage->peer); ++peer) {
      const Key key{passage->slot, peer};
      auto* const found = first(arrived_, key);
      if (found == nullptr) continue;
      EarlyMessagePtr arrival = *found;
      pop(arrived_, key);
      passage->peer = peer;
      return arrival;
    }
    posted_[{passage->slot, passage->peer}].push_back(std::move(passage));
    return nullptr;
  }
  /// Whether a receive waits that anybody may answer.
  bool waits_for_anybody() const {
    for (const auto& [key, queue] : posted_) {
      if (key.second == kAnyMember) return true;
    }
    return false;
  }

 private:
  using Key = std::pair<std::uint64_t, int>;
  struct Hash {
    std::size_t operator()(const Key& key) const {
      return (key.first ^ static_cast<std::uint64_t>(key.second) << 40) * 0x9e3779b97f4a7c15;
    }
  };
  template <class Value>
  using Queues = std::unordered_map<Key, std::deque<Value>, Hash>;

  template <class Value>
  static Value* first(Queues<Value>& queues, const Key& key) {
    const auto found = queues.find(key);
    return found == queues.end() ? nullptr : &found->second.front();
  }
  template <class Value>
  static void pop(Queues<Value>& queues, const Key& key) {
    const auto found = queues.find(key);
    found->second.pop_front();
    if (found->second.empty()) queues.erase(found);
  }

  Queues<PassagePtr> posted_;
  Queues<EarlyMessagePtr> arrived_;
  std::uint64_t posts_ = 0;
};

}  // namespace troupe::gpu
