#include "gpu/collective/nccl/nccl_group.hpp"

#include <algorithm>
#include <utility>

#include "gpu/collective/nccl/group_state.hpp"
#include "gpu/collective/operations.hpp"

namespace troupe::gpu {
namespace {

using Clock = std::chrono::steady_clock;

/// Where warm_up() works, behind the barrier's word.
constexpr std::size_t kWarmUpOffset = 256;

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
    // A stream waits for what is on it; what could not be aborted never ends.
    if (!state_->wait_for_disposal()) (void)stream.release();
    return *result;
  }
  state_->forget_order();
  return {};
}

}  // namespace troupe::gpu
