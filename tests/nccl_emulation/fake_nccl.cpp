#include "tests/nccl_emulation/fake_nccl.hpp"

#include <utility>

#include "tests/nccl_emulation/fake_world.hpp"

namespace troupe::gpu {

FakeNccl::FakeNccl(FakeNcclOptions options) : world_(std::make_shared<FakeNcclWorld>()) {
  world_->options = options;
}

FakeNccl::~FakeNccl() {
  const FakeNcclLock lock(*world_);
  world_->closed = true;
  world_->changed.notify_all();
  // Communicators know their processes, and these the world.
  for (const auto& comm : world_->communicators) comm->process.reset();
}

FakeNccl::Process FakeNccl::start_process(RunOnStream run_on_stream, FakeNcclMemory memory) {
  auto process = std::make_shared<FakeNcclProcess>();
  process->world = world_;
  process->run_on_stream = std::move(run_on_stream);
  process->memory = std::move(memory);
  return Process(std::move(process));
}

std::size_t FakeNccl::live_communicators() const {
  const FakeNcclLock lock(*world_);
  return world_->live;
}

std::size_t FakeNccl::live_ranges() const {
  const FakeNcclLock lock(*world_);
  return world_->ranges.size();
}

std::size_t FakeNccl::live_registrations() const {
  const FakeNcclLock lock(*world_);
  std::size_t count = 0;
  for (const auto& comm : world_->communicators) count += comm->registrations.size();
  return count;
}

std::size_t FakeNccl::registered_operations() const {
  const FakeNcclLock lock(*world_);
  return world_->registered_operations;
}

std::vector<std::string> FakeNccl::violations() const {
  const FakeNcclLock lock(*world_);
  return world_->violations;
}

void FakeNccl::Process::fail_next_call(NcclStatus status) {
  const FakeNcclLock lock(*state_->world);
  state_->next_call = status;
}

void FakeNccl::Process::report(NcclStatus status) {
  const FakeNcclLock lock(*state_->world);
  for (const auto& comm : state_->world->communicators) {
    if (comm->process == state_) comm->async = status;
  }
}

void FakeNccl::Process::refuse_memory(NcclStatus status) {
  const FakeNcclLock lock(*state_->world);
  state_->memory_status = status;
}

void FakeNccl::Process::refuse_registrations(NcclStatus status) {
  const FakeNcclLock lock(*state_->world);
  state_->registration_status = status;
}

void FakeNccl::Process::never_connect() {
  const FakeNcclLock lock(*state_->world);
  state_->connects = false;
}

void FakeNccl::Process::spoil_destroys(NcclStatus status) {
  const FakeNcclLock lock(*state_->world);
  state_->destroy_status = status;
}

void FakeNccl::Process::die() {
  const FakeNcclLock lock(*state_->world);
  state_->dead = true;
  for (const auto& comm : state_->world->communicators) {
    if (comm->process != state_ || comm->state == ncclComm::State::gone) continue;
    drop_kernels(*comm);
    remove_communicator(*comm);
  }
}

void FakeNccl::Process::block_aborts() {
  const FakeNcclLock lock(*state_->world);
  state_->aborts_block = true;
}

void FakeNccl::Process::release_aborts() {
  const FakeNcclLock lock(*state_->world);
  state_->aborts_block = false;
  state_->world->changed.notify_all();
}

std::vector<std::string> FakeNccl::Process::connections() const {
  const FakeNcclLock lock(*state_->world);
  return state_->connections;
}

FakeNcclSeen FakeNccl::Process::last_configuration() const {
  const FakeNcclLock lock(*state_->world);
  return state_->seen;
}

}  // namespace troupe::gpu
