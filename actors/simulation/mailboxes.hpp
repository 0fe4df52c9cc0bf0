#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "gpu/order/host_line.hpp"
#include "messages/envelope.hpp"

namespace troupe::actors {

/// The messages that wait in the mailboxes of a simulation. A message takes the memory of one that was
/// handled shortly before, of whatever rank. In memory of its own a mailbox would find it cold each time,
/// because all other ranks used theirs meanwhile.
class Mailboxes {
 public:
  struct Posted {
    messages::Envelope envelope;
    gpu::Past past;
    Posted* next = nullptr;  ///< in the mailbox
  };
  /// In the order in which they came.
  struct Mailbox {
    Posted* first = nullptr;
    Posted* last = nullptr;

    bool is_empty() const { return first == nullptr; }
  };

  void push(Mailbox& mailbox, messages::Envelope envelope, gpu::Past past) {
    if (free_.empty()) free_.push_back(&all_.emplace_back());
    Posted* const posted = free_.back();
    free_.pop_back();
    *posted = {std::move(envelope), std::move(past)};
    (mailbox.is_empty() ? mailbox.first : mailbox.last->next) = posted;
    mailbox.last = posted;
  }
  void pop(Mailbox& mailbox) {
    Posted* const posted = mailbox.first;
    mailbox.first = posted->next;
    *posted = {};
    free_.push_back(posted);
  }

 private:
  std::deque<Posted> all_;
  std::vector<Posted*> free_;
};

}  // namespace troupe::actors
