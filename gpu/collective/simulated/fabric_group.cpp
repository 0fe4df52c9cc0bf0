#include "gpu/collective/simulated/fabric_group.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/errors.hpp"
#include "gpu/collective/operations.hpp"
#include "gpu/collective/simulated/execute.hpp"

namespace troupe::gpu {

namespace {

/// What may be in the output of a failed operation: anything, but for what group.hpp says.
void spoil_output(const Operation& operation) {
  const BufferView output = operation.output;
  const ConstBufferView input = operation.input;
  const bool keeps_input =
      operation.kind == OperationKind::all_gather || operation.kind == OperationKind::broadcast;
  for (std::size_t i = 0; i < output.bytes; ++i) {
    const std::byte* const at = output.data + i;
    const bool is_input = at >= input.data && at < input.data + input.bytes;
    if (!keeps_input || !is_input) output.data[i] = std::byte{0xa5};
  }
}

}  // namespace

using core::Errc;
using core::Error;

FabricGroup::FabricGroup(std::shared_ptr<FabricModel> model, std::string name,
                         std::vector<core::Rank> members)
    : model_(std::move(model)), name_(std::move(name)), ranks_(std::move(members)), members_(ranks_.size()) {}

void LaunchQueue::begin(std::uint64_t turn, std::function<void()> start) {
  if (turn == over_) return start();
  waiting_.emplace(turn, std::move(start));
}

void LaunchQueue::end() {
  over_ += 1;
  if (auto next = waiting_.extract(over_)) next.mapped()();
}

std::shared_ptr<LaunchQueue> FabricGroup::queue_of(int index) const {
  if (!model_->options.in_launch_order) return nullptr;
  auto& queue = model_->queues[ranks_[static_cast<std::size_t>(index)]];
  if (!queue) queue = std::make_shared<LaunchQueue>();
  return queue;
}

bool FabricGroup::join(int index) {
  return !std::exchange(members_[index].joined, true);
}

void FabricGroup::arrive(const MeetingKey& key, int index, Arrival arrival) {
  const Member& member = members_[index];
  if (member.dead) return;
  if (member.failure) return finish(index, std::move(arrival), tl::unexpected(*member.failure));
  arrival.give_up = model_->timeline.now() + arrival.operation->deadline;
  arm(arrival.give_up);
  Meeting& meeting = meetings_[key];
  meeting.arrivals.resize(participants(key));
  meeting.seen.resize(participants(key));
  const auto place = *place_of(key, index);
  meeting.arrivals[place] = std::move(arrival);
  meeting.seen[place] = true;
  meeting.present += 1;
  if (is_complete(key, meeting)) run(key, meeting);
}

int FabricGroup::index_at(const MeetingKey& key, std::size_t place) {
  if (key.source < 0) return static_cast<int>(place);
  return place == 0 ? std::min(key.source, key.destination) : std::max(key.source, key.destination);
}

std::optional<std::size_t> FabricGroup::place_of(const MeetingKey& key, int index) {
  if (key.source < 0) return static_cast<std::size_t>(index);
  if (index != key.source && index != key.destination) return std::nullopt;
  return index == index_at(key, 0) ? 0 : 1;
}

Arrival FabricGroup::take(Meeting& meeting, std::size_t place) {
  meeting.present -= 1;
  return std::exchange(meeting.arrivals[place], {});
}

/// Asked at each arrival, so without a look at all members.
bool FabricGroup::is_complete(const MeetingKey& key, const Meeting& meeting) const {
  if (meeting.present < participants(key)) return false;
  return !has_hung_ || missing(key, meeting).empty();
}

std::vector<int> FabricGroup::missing(const MeetingKey& key, const Meeting& meeting) const {
  std::vector<int> indices;
  for (std::size_t place = 0; place < participants(key); ++place) {
    const int index = index_at(key, place);
    const bool is_here = meeting.arrivals[place].operation != nullptr;
    if (!is_here || members_[index].hung) indices.push_back(index);
  }
  return indices;
}

std::optional<std::string> FabricGroup::disagreement(const MeetingKey& key, const Meeting& meeting) const {
  if (key.source >= 0) {
    const auto signature = [&](int index) {
      return signature_of(*meeting.arrivals[*place_of(key, index)].operation);
    };
    return find_disagreement(signature(key.source), rank_of(key.source), signature(key.destination),
                             rank_of(key.destination));
  }
  std::vector<Signature> signatures;
  signatures.reserve(meeting.arrivals.size());
  for (const auto& arrival : meeting.arrivals) signatures.push_back(signature_of(*arrival.operation));
  return find_disagreement(signatures, ranks_);
}

void FabricGroup::run(const MeetingKey& key, Meeting& meeting) {
  if (const auto sentence = disagreement(key, meeting)) {
    const Error error{Errc::mismatch, fmt::format("group '{}': {}; all members must post the same operations "
                                                  "in the same order",
                                                  name_, *sentence)};
    for (int i = 0; i < size(); ++i) fail(i, error);
    return;
  }
  meeting.running = true;
  model_->timeline.after(duration(key, *meeting.arrivals.front().operation), [weak = weak_from_this(), key] {
    if (const auto self = weak.lock()) self->complete(key);
  });
}

std::chrono::nanoseconds FabricGroup::duration(const MeetingKey& key, const Operation& operation) const {
  double slowdown = 1;
  for (std::size_t place = 0; !model_->slowdowns.empty() && place < participants(key); ++place) {
    const auto found = model_->slowdowns.find(rank_of(index_at(key, place)));
    if (found != model_->slowdowns.end()) slowdown = std::max(slowdown, found->second);
  }
  const double nanoseconds =
      static_cast<double>(model_->options.latency.count()) +
      static_cast<double>(bytes_on_the_wire(operation, size())) / model_->options.bytes_per_second * 1e9;
  return std::chrono::nanoseconds(static_cast<std::int64_t>(nanoseconds * slowdown));
}

void FabricGroup::complete(const MeetingKey& key) {
  const auto found = meetings_.find(key);
  // If a member failed or hung meanwhile, the others run into their deadlines.
  if (found == meetings_.end() || !is_complete(key, found->second)) return;
  Meeting meeting = std::move(found->second);
  meetings_.erase(found);
  std::vector<const Operation*> operations;
  operations.reserve(meeting.arrivals.size());
  for (const auto& arrival : meeting.arrivals) operations.push_back(arrival.operation.get());
  if (key.source > key.destination) std::swap(operations[0], operations[1]);  // the sender's first
  execute_together(operations);

  const auto planned = take_planned_error(key);
  for (std::size_t place = 0; place < meeting.arrivals.size(); ++place) {
    const int index = index_at(key, place);
    core::Result<void> result;
    const bool is_hit = planned && std::ranges::count(planned->ranks, rank_of(index)) > 0;
    if (is_hit) result = tl::unexpected(planned->error);
    finish(index, take(meeting, place), std::move(result));
    if (is_hit) fail(index, planned->error);
  }
}

std::optional<FabricModel::PlannedError> FabricGroup::take_planned_error(const MeetingKey& key) {
  auto& all = model_->planned_errors;
  for (auto planned = all.begin(); planned != all.end(); ++planned) {
    for (std::size_t place = 0; place < participants(key); ++place) {
      if (std::ranges::count(planned->ranks, rank_of(index_at(key, place))) == 0) continue;
      auto taken = std::move(*planned);
      all.erase(planned);
      return taken;
    }
  }
  return std::nullopt;
}

void FabricGroup::finish(int index, Arrival arrival, core::Result<void> result) {
  CHECK(!members_[index].dead, "a dead member completes nothing");
  if (!result) spoil_output(*arrival.operation);
  arrival.status->finish(std::move(result));
  arrival.completion();
}

void FabricGroup::fail(int index, Error error) {
  Member& member = members_[index];
  if (member.dead || member.failure) return;
  member.failure = error;
  std::vector<Arrival> ended;
  for (auto entry = meetings_.begin(); entry != meetings_.end();) {
    auto& [key, meeting] = *entry;
    const auto place = place_of(key, index);
    if (place && meeting.arrivals[*place].operation != nullptr) ended.push_back(take(meeting, *place));
    entry = meeting.present == 0 ? meetings_.erase(entry) : std::next(entry);
  }
  for (Arrival& arrival : ended) finish(index, std::move(arrival), tl::unexpected(error));
}

void FabricGroup::kill(int index) {
  Member& member = members_[index];
  if (member.dead) return;
  member.dead = true;
  for (auto& [key, meeting] : meetings_) {
    const auto place = place_of(key, index);
    if (place && meeting.arrivals[*place].operation != nullptr) take(meeting, *place);
  }
  const Error error{Errc::peer_lost,
                    fmt::format("group '{}': rank {} died; abort, and make a new group in the next epoch",
                                name_, ranks_[static_cast<std::size_t>(index)].value)};
  model_->timeline.after(model_->options.detection_delay, [weak = weak_from_this(), error] {
    if (const auto self = weak.lock()) {
      for (int i = 0; i < self->size(); ++i) self->fail(i, error);
    }
  });
}

void FabricGroup::hang(int index) {
  members_[index].hung = true;
  has_hung_ = true;
}

void FabricGroup::arm(std::chrono::nanoseconds give_up) {
  if (armed_ && *armed_ <= give_up) return;
  armed_ = give_up;
  model_->timeline.after(give_up - model_->timeline.now(), [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->expire();
  });
}

void FabricGroup::expire() {
  const auto now = model_->timeline.now();
  if (!armed_ || *armed_ > now) return;
  armed_.reset();
  std::map<int, Error> late;
  std::optional<std::chrono::nanoseconds> next;
  for (const auto& [key, meeting] : meetings_) {
    for (std::size_t place = 0; place < meeting.arrivals.size(); ++place) {
      const auto& arrival = meeting.arrivals[place];
      if (arrival.operation == nullptr) continue;
      if (arrival.give_up <= now) {
        late.emplace(index_at(key, place), timeout_of(key, meeting, *arrival.operation));
      } else {
        next = std::min(next.value_or(arrival.give_up), arrival.give_up);
      }
    }
  }
  if (next) arm(*next);
  for (const auto& [index, error] : late) fail(index, error);
}

Error FabricGroup::timeout_of(const MeetingKey& key, const Meeting& meeting,
                              const Operation& operation) const {
  std::vector<core::Rank> silent;
  std::string who;
  for (const int index : missing(key, meeting)) {
    if (meeting.seen[*place_of(key, index)] && !members_[index].hung) continue;
    silent.push_back(rank_of(index));
    who += fmt::format("{}{}", who.empty() ? "" : ", ", silent.back().value);
  }
  return {Errc::timeout,
          fmt::format("group '{}': {} {} did not end within {} ms: {}", name_, name_of(operation.kind),
                      key.sequence,
                      std::chrono::duration_cast<std::chrono::milliseconds>(operation.deadline).count(),
                      who.empty() ? "it still runs" : "no sign of rank " + who),
          std::move(silent)};
}

}  // namespace troupe::gpu
