#include "gpu/collective/nccl/communicator.hpp"

#include <utility>

#include "core/errors.hpp"
#include "gpu/collective/nccl/poll.hpp"

namespace troupe::gpu {
namespace {

using core::Errc;
using Function = NcclCall::Function;

std::int64_t milliseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
}

NcclConfig configuration(const NcclOptions& options, const std::string& name) {
  NcclConfig config;
  // A blocking communicator waits in sockets without a limit if a peer dies.
  config.blocking = 0;
  // Communicators that share resources cannot be aborted one by one.
  config.split_share = 0;
  config.shrink_share = 0;
  // Policy 2 runs collectives on copy engines, where no abort reaches them.
  config.cta_policy = 0;
  if (options.min_ctas > 0) config.min_ctas = options.min_ctas;
  if (options.max_ctas > 0) config.max_ctas = options.max_ctas;
  config.comm_name = name.c_str();
  return config;
}

}  // namespace

core::Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::join(
    std::shared_ptr<const NcclLibrary> library, NcclDisposal& disposal, NcclCaller caller, Place place,
    const NcclUniqueId& id, const NcclOptions& options, const NcclPatience& patience, std::mutex& launches) {
  std::unique_ptr<NcclCommunicator> self(
      new NcclCommunicator(std::move(library), disposal, std::move(caller)));
  const auto& api = self->library_->api;
  NcclConfig config = configuration(options, self->caller_->group);
  constexpr std::string_view kCall = "ncclCommInitRankConfig";
  NcclStatus status = NcclStatus::success;
  NcclComm comm = nullptr;
  {
    std::lock_guard lock(launches);
    status = api.comm_init_rank_config(&comm, place.size, id, place.index, &config);
  }
  self->comm_ = comm;
  if (comm == nullptr) {
    return tl::unexpected(self->error(status, kCall, nullptr));
  }
  if (status == NcclStatus::success || status == NcclStatus::in_progress) {
    status = poll_nccl(api, comm, patience.give_up, patience.is_over);
  }
  if (status == NcclStatus::success) return self;
  if (status == NcclStatus::in_progress) {
    return core::fail(Errc::timeout,
                      "{}: expected {} members within {} ms, but {} still waits; NCCL does not say for "
                      "whom: look at the members that did not start",
                      self->caller_->text(), place.size, milliseconds(patience.limit), kCall);
  }
  return tl::unexpected(self->error(status, kCall, comm));
}

NcclCommunicator::~NcclCommunicator() {
  if (const auto task = abort()) disposal_.wait(task);
}

core::Result<void> NcclCommunicator::launch(std::span<const NcclLaunch> launches,
                                            const NcclPatience& patience) {
  const auto& api = library_->api;
  std::lock_guard lock(*calls_);
  const std::string_view what = launches.size() == 1 ? name_of(launches[0].call.function) : "ncclGroupEnd";
  const NcclComm comm = comm_;
  if (comm == nullptr) return tl::unexpected(gone(what));
  // The first error is the one reported.
  std::string_view culprit = what;
  NcclStatus status = NcclStatus::success;
  const auto note = [&](NcclStatus returned, std::string_view call) {
    if (returned == NcclStatus::success || returned == NcclStatus::in_progress) return;
    if (status == NcclStatus::success) {
      status = returned;
      culprit = call;
    }
  };
  const bool grouped = launches.size() > 1;
  if (grouped) note(api.group_start(), "ncclGroupStart");
  for (const NcclLaunch& launch : launches) note(call(launch, comm), name_of(launch.call.function));
  if (grouped) note(api.group_end(), "ncclGroupEnd");

  const auto is_over = [&] { return comm_ == nullptr || patience.is_over(); };
  const NcclStatus state =
      is_over() ? NcclStatus::in_progress : poll_nccl(api, comm, patience.give_up, is_over);
  if (state == NcclStatus::in_progress) {
    return core::fail(is_over() ? Errc::aborted : Errc::timeout,
                      "{}: {} was not launched within {} ms: it waits for a connection to a peer",
                      caller_->text(), culprit, milliseconds(patience.limit));
  }
  note(state, culprit);
  if (status == NcclStatus::success) return {};
  return tl::unexpected(error(status, culprit, comm));
}

core::Result<void> NcclCommunicator::register_memory(std::shared_ptr<const NcclMemory> memory,
                                                     const NcclPatience& patience) {
  constexpr std::string_view kCall = "ncclCommRegister";
  std::lock_guard lock(*calls_);
  const NcclComm comm = comm_;
  if (comm == nullptr) return tl::unexpected(gone(kCall));
  for (const NcclRegistration& each : *registrations_) {
    if (each.memory == memory) return {};
  }
  const BufferView view = memory->view();
  NcclRegistration& made = registrations_->emplace_back(NcclRegistration{std::move(memory), nullptr});
  const auto& api = library_->api;
  NcclStatus status = api.comm_register(comm, view.data, view.bytes, &made.handle);
  if (status == NcclStatus::success || status == NcclStatus::in_progress) {
    const auto is_over = [&] { return comm_ == nullptr || patience.is_over(); };
    status = poll_nccl(api, comm, patience.give_up, is_over);
  }
  // NCCL may still write the handle of a call in progress, so its memory stays.
  if (status == NcclStatus::in_progress) {
    return core::fail(Errc::timeout, "{}: {} was not over within {} ms", caller_->text(), kCall,
                      milliseconds(patience.limit));
  }
  if (status == NcclStatus::success && made.handle != nullptr) return {};
  registrations_->pop_back();
  if (status != NcclStatus::success) return tl::unexpected(error(status, kCall, comm));
  return core::fail(Errc::unavailable,
                    "{}: NCCL does not register its memory (NCCL_LOCAL_REGISTER=0, or GPUs that copy through "
                    "the host)",
                    caller_->text());
}

void NcclCommunicator::deregister_memory() {
  std::lock_guard lock(*calls_);
  const NcclComm comm = comm_;
  if (comm != nullptr) deregister_all(library_->api, comm, *registrations_);
}

NcclStatus NcclCommunicator::call(const NcclLaunch& launch, NcclComm comm) const {
  const auto& api = library_->api;
  const NcclCall& c = launch.call;
  switch (c.function) {
    case Function::all_reduce:
      return api.all_reduce(c.input, c.output, c.count, c.type, c.reduction, comm, launch.stream);
    case Function::reduce:
      return api.reduce(c.input, c.output, c.count, c.type, c.reduction, c.peer, comm, launch.stream);
    case Function::reduce_scatter:
      return api.reduce_scatter(c.input, c.output, c.count, c.type, c.reduction, comm, launch.stream);
    case Function::all_gather:
      return api.all_gather(c.input, c.output, c.count, c.type, comm, launch.stream);
    case Function::broadcast:
      return api.broadcast(c.input, c.output, c.count, c.type, c.peer, comm, launch.stream);
    case Function::send:
      return api.send(c.input, c.count, c.type, c.peer, comm, launch.stream);
    case Function::receive:
      return api.receive(c.output, c.count, c.type, c.peer, comm, launch.stream);
  }
  return NcclStatus::invalid_argument;
}

std::optional<core::Error> NcclCommunicator::async_error() {
  std::unique_lock lock(*calls_, std::try_to_lock);
  const NcclComm comm = comm_;
  if (!lock || comm == nullptr) return std::nullopt;
  NcclStatus state = NcclStatus::success;
  const NcclStatus asked = library_->api.comm_get_async_error(comm, &state);
  if (asked != NcclStatus::success) return error(asked, "ncclCommGetAsyncError", comm);
  if (state == NcclStatus::success || state == NcclStatus::in_progress) return std::nullopt;
  return error(state, "an operation that was running", comm);
}

NcclHandle NcclCommunicator::take() {
  return {comm_.exchange(nullptr), caller_, calls_, registrations_};
}

std::shared_ptr<NcclDisposal::Task> NcclCommunicator::abort() {
  NcclHandle handle = take();
  return handle.comm == nullptr ? nullptr : disposal_.abort(std::move(handle));
}

std::shared_ptr<NcclDisposal::Task> NcclCommunicator::leave() {
  NcclHandle handle = take();
  return handle.comm == nullptr ? nullptr : disposal_.leave(std::move(handle));
}

core::Error NcclCommunicator::error(NcclStatus status, std::string_view what, NcclComm comm) const {
  const char* const detail = library_->api.get_last_error(comm);
  return nccl_error(status, what, *caller_, detail == nullptr ? "" : detail);
}

core::Error NcclCommunicator::gone(std::string_view what) const {
  return {Errc::aborted, fmt::format("{}: {} came after the end of the group", caller_->text(), what)};
}

}  // namespace troupe::gpu
