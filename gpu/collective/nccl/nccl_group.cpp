#include "gpu/collective/nccl/nccl_group.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "core/errors.hpp"
#include "gpu/collective/nccl/group_state.hpp"
#include "gpu/collective/operations.hpp"
#include "gpu/kernels.hpp"

namespace troupe::gpu {
namespace {

using Clock = std::chrono::steady_clock;

/// The memory of least_of_all(), after the barrier's word.
constexpr std::size_t kAgreementOffset = 256;
/// What an operation of warm_up() moves at most. NCCL's choices depend on the size, but no more beyond this.
constexpr std::size_t kWarmUpBytes = std::size_t{32} << 20;

/// Clocks overflow when nanoseconds::max() is added to now.
std::chrono::nanoseconds limit_of(const GroupOptions& options) {
  return std::min<std::chrono::nanoseconds>(options.deadline, std::chrono::hours(24 * 365));
}

ExpectedOperation limited(ExpectedOperation expected, int members) {
  const std::size_t most = kWarmUpBytes / core::size_of(expected.dtype) / static_cast<std::size_t>(members);
  for (std::size_t& part : expected.parts) part = std::min(part, most);
  return expected;
}

std::size_t total_bytes(const ExpectedOperation& expected) {
  return std::accumulate(expected.parts.begin(), expected.parts.end(), std::size_t{0}) *
         core::size_of(expected.dtype);
}

std::size_t room_of(const ExpectedOperation& expected, int members) {
  const bool goes_to_each = expected.kind == OperationKind::all_to_all;
  return total_bytes(expected) * (goes_to_each ? 2 * static_cast<std::size_t>(members) : 1);
}

/// The operation that a member posts, in place where that is possible.
Operation operation_of(const ExpectedOperation& expected, int index, int members, BufferView scratch) {
  Operation operation{.kind = expected.kind, .dtype = expected.dtype, .peer = expected.peer};
  const std::size_t bytes = total_bytes(expected);
  const BufferView all = scratch.subview(0, bytes);
  const auto own = [&] {
    CHECK(expected.parts.size() == static_cast<std::size_t>(members), "each member has a part");
    const std::size_t width = core::size_of(expected.dtype);
    const auto place = static_cast<std::size_t>(index);
    return all.subview(offsets_of(expected.parts)[place] * width, expected.parts[place] * width);
  };
  switch (expected.kind) {
    case OperationKind::all_reduce:
      operation.input = operation.output = all;
      break;
    case OperationKind::reduce_scatter:
      operation.input = all;
      operation.output = own();
      operation.output_counts = expected.parts;
      break;
    case OperationKind::all_gather:
      operation.input = own();
      operation.output = all;
      operation.input_counts = expected.parts;
      break;
    case OperationKind::all_to_all:
      operation.input = scratch.subview(0, bytes * static_cast<std::size_t>(members));
      operation.output = scratch.subview(operation.input.bytes, operation.input.bytes);
      break;
    case OperationKind::broadcast:
      if (index == expected.peer) {
        operation.input = all;
      } else {
        operation.output = all;
      }
      break;
    case OperationKind::send:
      operation.input = all;
      break;
    case OperationKind::receive:
      operation.output = all;
      break;
    case OperationKind::barrier:
      break;
  }
  return operation;
}

}  // namespace

std::size_t NcclGroup::word_bytes() {
  return kAgreementOffset + sizeof(std::int32_t);
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

void NcclGroup::record() {
  state_->record();
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
  const BufferView word = state_->words().subview(kAgreementOffset, on_host.bytes());
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

core::Result<void> NcclGroup::warm_up(const std::vector<ExpectedOperation>& expected,
                                      Clock::time_point give_up) {
  Device& device = state_->device().device();
  std::size_t bytes = 0;
  for (const auto& each : expected) bytes = std::max(bytes, room_of(limited(each, size()), size()));
  const Buffer scratch = TRY(device.allocate(bytes));
  // After the memory: destroying a stream waits for its work.
  Stream stream = TRY(device.create_stream({.name = "nccl warm up"}));
  const auto left = [&] {
    return std::max<std::chrono::nanoseconds>(give_up - Clock::now(), std::chrono::milliseconds(1));
  };
  std::vector<std::shared_ptr<OperationStatus>> statuses{TRY(post({.deadline = left()}, stream.get()))};
  std::vector<Posting> messages;
  for (const auto& each : expected) {
    auto operation = operation_of(limited(each, size()), index(), size(), scratch.view());
    operation.deadline = left();
    const bool is_message = operation.kind == OperationKind::send || operation.kind == OperationKind::receive;
    if (is_message) {
      messages.push_back({std::move(operation), stream.get()});
    } else {
      statuses.push_back(TRY(post(std::move(operation), stream.get())));
    }
  }
  if (!messages.empty())
    std::ranges::copy(TRY(post_together(std::move(messages))), std::back_inserter(statuses));
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
