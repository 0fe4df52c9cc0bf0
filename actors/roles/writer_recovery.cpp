// How a CheckpointWriter takes the place of one that has thrown.

#include <algorithm>
#include <utility>

#include "actors/roles/checkpoint_writer.hpp"

namespace troupe::actors {

std::unique_ptr<Machine> CheckpointWriterMachine::successor(const messages::Failure& why,
                                                            const messages::Envelope* heard,
                                                            Outbox& outbox) const {
  auto next = std::make_unique<CheckpointWriterMachine>(config_);
  next->last_begun_ = last_begun_;
  next->last_ = State::failed;
  next->early_ = early_;
  std::swap(next->draining_, next->free_credits_);
  for (const auto& save : saves_) next->take_over(save, why, outbox);
  if (heard != nullptr) next->recover(*heard, why, outbox);
  next->drain(outbox);
  return next;
}

void CheckpointWriterMachine::take_over(const Save& save, const messages::Failure& why, Outbox& outbox) {
  Save lost;
  lost.sequence = save.sequence;
  lost.state = State::failed;
  lost.planned = save.planned;
  lost.buckets = save.buckets;
  lost.failure = why;
  lost.over = save.over;
  saves_.push_back(std::move(lost));
  outbox.perform(CloseSave{save.sequence});
  if (!save.over) outbox.send(coordinator(), messages::SaveFailed{save.sequence, config_.rank, why});
}

/// What the predecessor did not get to know.
void CheckpointWriterMachine::recover(const messages::Envelope& heard, const messages::Failure& why,
                                      Outbox& outbox) {
  if (const auto* begun = std::get_if<messages::SaveBegan>(&heard.body)) {
    if (begun->sequence <= last_begun_) return;
    Save save;
    save.sequence = begun->sequence;
    save.buckets.resize(buckets());
    announce(*begun, outbox);
    take_over(save, why, outbox);
    last_begun_ = begun->sequence;
    std::erase_if(early_, [&](const auto& held) { return held.sequence <= begun->sequence; });
  } else if (const auto* held = std::get_if<messages::BucketHeld>(&heard.body)) {
    if (held->sequence > last_begun_) early_.push_back(*held);
  } else if (const auto* planned = std::get_if<messages::SavePlanned>(&heard.body)) {
    if (Save* save = find(planned->sequence)) save->planned = true;
  } else if (const auto* over = std::get_if<messages::SaveOver>(&heard.body)) {
    if (Save* save = find(over->sequence)) save->over = *over;
  } else if (const auto* wanted = std::get_if<messages::StructureWanted>(&heard.body)) {
    on(*wanted, outbox);
  }
}

void CheckpointWriterMachine::drain(Outbox& outbox) {
  for (const auto credit : draining_) outbox.perform(StageChunk{kNoSave, 0, credit});
}

void CheckpointWriterMachine::drained(std::uint32_t credit, Outbox& outbox) {
  draining_.erase(credit);
  free_credits_.insert(credit);
  if (!draining_.empty()) return;
  for (auto& save : saves_) {
    if (save.state == State::failed) release_all(save, outbox);
  }
  for (auto before = saves_.size() + 1; before > saves_.size();) {
    before = saves_.size();
    end(outbox);
  }
  advance(outbox);
}

}  // namespace troupe::actors
