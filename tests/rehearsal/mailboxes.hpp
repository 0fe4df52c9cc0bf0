#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "core/result.hpp"

namespace troupe::rehearsal {

/// Shared memory of the members of one communicator, each a process: from each member to each one a box that
/// holds one piece of a message. Thread safe as far as each box has one sender and one receiver.
class Mailboxes {
 public:
  /// Made by whoever comes first.
  static core::Result<std::unique_ptr<Mailboxes>> open(const std::string& name, int members);
  ~Mailboxes();
  Mailboxes(const Mailboxes&) = delete;
  Mailboxes& operator=(const Mailboxes&) = delete;

  void join();
  /// From then on the memory has no name: nothing of it outlives the members.
  bool have_all_joined();

  /// Puts in as many bytes as fit; 0 while the receiver has not taken what is there.
  std::size_t put(int from, int to, const std::byte* data, std::size_t bytes);
  /// Takes all of the box, at most `bytes`; 0 while it is empty.
  std::size_t take(int from, int to, std::byte* data, std::size_t bytes);

 private:
  struct Box;

  Mailboxes(std::string name, int members, std::size_t bytes, std::byte* memory)
      : name_(std::move(name)), members_(members), bytes_(bytes), memory_(memory) {}
  Box& box(int from, int to);

  const std::string name_;
  const int members_;
  const std::size_t bytes_;
  std::byte* const memory_;
  bool is_named_ = true;
};

}  // namespace troupe::rehearsal
