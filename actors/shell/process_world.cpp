#include "actors/shell/process_world.hpp"

#include "actors/shell/process_rank.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

core::Result<std::unique_ptr<ProcessWorld>> ProcessWorld::create(ProcessWorldOptions options) {
  auto rank = TRY(ProcessRank::create(std::move(options)));
  return std::unique_ptr<ProcessWorld>(new ProcessWorld(std::move(rank)));
}

ProcessWorld::ProcessWorld(std::unique_ptr<ProcessRank> rank) : rank_(std::move(rank)) {}

ProcessWorld::~ProcessWorld() = default;

core::Rank ProcessWorld::rank() const {
  return rank_->rank();
}
core::WorldSize ProcessWorld::world_size() const {
  return rank_->world_size();
}
const JobEnvironment& ProcessWorld::environment() const {
  return rank_->environment();
}
const std::string& ProcessWorld::device_name() const {
  return rank_->device_name();
}
core::Result<void> ProcessWorld::form_anew(const core::Error& why) {
  return rank_->form_anew(why);
}
ProcessWorld::operator RankWorld&() {
  return *rank_;
}
CafStage* ProcessWorld::stage() {
  return rank_->stage();
}

}  // namespace troupe::actors
