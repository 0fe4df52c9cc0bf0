#include "gpu/collective/nccl/nccl_group.hpp"

#include <algorithm>
#include <utility>

#include "core/errors.hpp"
#include "gpu/collective/nccl/group_state.hpp"
#include "gpu/collective/operations.hpp"
#include "gpu/kernels.hpp"

namespace troupe::gpu {
namespace {

using Clock = std::chrono::steady_clock;

/// The memory of warm_up() and least_of_all(), after the barrier's word.
constexpr std::size_t kWarmUpOffset = 256;

/// Clocks overflow when nanoseconds::max() is added to now.
std::chrono::nanoseconds limit_of(const GroupOptions& options) {
  return std::min<std::chrono::nanoseconds>(options.deadline, std::chrono::hours(24 * 365));
}

}  // namespace

std::size_t NcclGroup::word_bytes(int size) {
  return kWarmUpOffset + 2 * static_cast<std::size_t>(size) * sizeof(std::int32_t);
}

NcclGroup::NcclGroup(NcclDevice& device, GroupOptions options, int index,
                     std::unique_ptr<NcclCommunicator> communicator, Buffer words)
    : state_(std::make_shared<State>(device, std::move(options), index, std::move(communicator),
                                     std::move(words))) {
  device.watch().add(state_);
}

NcclGroup::~NcclGroup() {
  state_->leave();
}

int NcclGroup::index() const {
  return state_->index();
}

int NcclGroup::size() const {
  return static_cast<int>(state_->options().members.size());
}

const std::string& NcclGroup::name() const {
  return state_->options().name;
}

core::Result<std::shared_ptr<OperationStatus>> NcclGroup::post(Operation operation, StreamView stream) {
  operation = TRY(prepare(std::move(operation), index(), size()));
  std::vector<Posting> postings;
  postings.push_back({std::move(operation), stream});
  const auto statuses = TRY(state_->post(std::move(postings)));
  return statuses.front();
}

core::Result<std::vector<std::shared_ptr<OperationStatus>>> NcclGroup::post_together(
    std::vector<Posting> postings) {
  return state_->post(TRY(prepare(std::move(postings), index(), size())));
}

void NcclGroup::abort(core::Error reason) {
  state_->fail(std::move(reason));
}

NcclOrder NcclGroup::order() const {
  return state_->order();
}

core::Result<bool> NcclGroup::use_memory(std::span<const BufferView> memory) {
  NcclDevice& device = state_->device();
  if (state_->communicator() == nullptr || !device.registers_memory()) return false;
  const auto current = TRY(device.port().make_current());
  const auto own = register_memory(memory);
  const int first = TRY(least_of_all(own ? size() : index()));
  if (first == size()) return true;
  {
    std::lock_guard lock(device.launches());
    state_->communicator()->deregister_memory();
  }
  const GroupOptions& options = state_->options();
  device.warn(fmt::format("group '{}' (epoch {}), rank {} on {}: no memory is registered: {}", name(),
                          options.epoch.value, options.self.value, device.port().name,
                          own ? fmt::format("rank {} has none that can be",
                                            options.members[static_cast<std::size_t>(first)].value)
                              : own.error().message));
  return false;
}

core::Result<void> NcclGroup::register_memory(std::span<const BufferView> memory) {
  NcclDevice& device = state_->device();
  std::vector<std::shared_ptr<const NcclMemory>> ranges;
  for (const BufferView view : memory) {
    if (view.bytes == 0) continue;
    ranges.push_back(device.memories().find(view));
    if (ranges.back() == nullptr) {
      return core::fail(core::Errc::unavailable, "{} bytes of what it uses are not from ncclMemAlloc",
                        view.bytes);
    }
  }
  const auto limit = limit_of(state_->options());
  std::lock_guard lock(device.launches());
  for (auto& range : ranges) {
    TRY(state_->communicator()->register_memory(std::move(range),
                                                {.give_up = Clock::now() + limit, .limit = limit}));
  }
  return {};
}

core::Result<int> NcclGroup::least_of_all(int own) {
  const auto give_up = Clock::now() + limit_of(state_->options());
  Device& device = state_->device().device();
  Buffer on_host = TRY(device.allocate_staging(sizeof(std::int32_t)));
  Stream stream = TRY(device.create_stream({.name = "nccl agreement"}));
  const BufferView word = state_->words().subview(kWarmUpOffset, on_host.bytes());
  on_host.view().as<std::int32_t>()[0] = own;
  copy(on_host.view(), word, stream.get());
  const Operation least{.kind = OperationKind::all_reduce,
                        .dtype = core::DType::i32,
                        .reduce = ReduceOp::min,
                        .input = word,
                        .output = word,
                        .deadline = limit_of(state_->options())};
  const auto status = TRY(post(least, stream.get()));
  copy(word, on_host.view(), stream.get());
  TRY(wait(stream, {status}, give_up));
  return on_host.view().as<std::int32_t>()[0];
}

core::Result<void> NcclGroup::warm_up(Clock::time_point give_up) {
  Stream stream = TRY(state_->device().device().create_stream({.name = "nccl warm up"}));
  const auto words = static_cast<std::size_t>(size());
  const BufferView all = state_->words().subview(kWarmUpOffset, words * sizeof(std::int32_t));
  const BufferView others = state_->words().subview(kWarmUpOffset + all.bytes, all.bytes);
  const BufferView part =
      others.subview(static_cast<std::size_t>(index()) * sizeof(std::int32_t), sizeof(std::int32_t));
  const Operation sorts[] = {{.kind = OperationKind::barrier},
                             {.kind = OperationKind::reduce_scatter, .input = all, .output = part},
                             {.kind = OperationKind::all_gather, .input = part, .output = others},
                             {.kind = OperationKind::all_to_all, .input = all, .output = others}};
  std::vector<std::shared_ptr<OperationStatus>> statuses;
  for (Operation operation : sorts) {
    operation.dtype = core::DType::i32;
    operation.deadline =
        std::max<std::chrono::nanoseconds>(give_up - Clock::now(), std::chrono::milliseconds(1));
    statuses.push_back(TRY(post(std::move(operation), stream.get())));
  }
  TRY(wait(stream, statuses, give_up));
  state_->forget_order();
  return {};
}

core::Result<void> NcclGroup::wait(Stream& stream,
                                   const std::vector<std::shared_ptr<OperationStatus>>& statuses,
                                   Clock::time_point give_up) {
  const auto left = std::max<std::chrono::nanoseconds>(give_up - Clock::now(), {});
  if (!stream->synchronize(left)) {
    state_->fail({core::Errc::timeout,
                  fmt::format("group '{}': rank {} expected its first operations to end while the group was "
                              "made, but a member that joined does not take part; look at the others' errors",
                              name(), state_->options().self.value)});
  }
  for (const auto& status : statuses) {
    const auto result = status->result();
    if (!result || *result) continue;
    // Destroying a stream waits for its work, and work that could not be aborted never ends.
    if (!state_->wait_for_disposal()) {
      [[maybe_unused]] auto* const never_freed = stream.release();
    }
    return *result;
  }
  return {};
}

}  // namespace troupe::gpu
