#include "actors/session/sequencer.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <deque>
#include <set>
#include <utility>

#include "core/errors.hpp"
#include "core/layout/buffer_layout.hpp"
#include "gpu/collective/operations.hpp"
#include "gpu/device.hpp"

namespace troupe::actors {

using core::Errc;
using core::Result;

void complete_groups(std::vector<TrainerGroupSpec>& groups, core::WorldSize world) {
  for (auto& group : groups) {
    if (!group.members.empty()) continue;
    auto& all = group.members.emplace_back();
    for (int rank = 0; rank < world.value; ++rank) all.push_back({rank});
  }
}

Result<void> check_groups(const std::vector<TrainerGroupSpec>& groups, core::WorldSize world) {
  std::set<std::string> names;
  for (const auto& group : groups) {
    const auto is_allowed = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_'; };
    if (group.name.empty() || !std::all_of(group.name.begin(), group.name.end(), is_allowed)) {
      return core::fail(Errc::invalid_argument, "a group is named '{}'; use letters, digits, '-' and '_'",
                        group.name);
    }
    if (!names.insert(group.name).second) {
      return core::fail(Errc::invalid_argument, "two groups are named {}; give each a name of its own",
                        group.name);
    }
    std::vector<int> times(static_cast<std::size_t>(world.value), 0);
    for (const auto& members : group.members) {
      for (const auto rank : members) {
        if (rank.value < 0 || rank.value >= world.value) {
          return core::fail(Errc::invalid_argument, "group {} has rank {}, but the job has ranks 0 to {}",
                            group.name, rank.value, world.value - 1);
        }
        times[static_cast<std::size_t>(rank.value)] += 1;
      }
    }
    for (int rank = 0; rank < world.value; ++rank) {
      if (times[static_cast<std::size_t>(rank)] == 1) continue;
      return core::fail(Errc::invalid_argument,
                        "group {} names rank {} {} times; every rank is in exactly one part of a group, if "
                        "need be alone",
                        group.name, rank, times[static_cast<std::size_t>(rank)]);
    }
  }
  return {};
}

std::string configuration_of(const std::vector<TrainerGroupSpec>& groups) {
  std::string text;
  for (const auto& group : groups) {
    text += fmt::format("\ngroup {}:", group.name);
    for (const auto& members : group.members) {
      text += " [";
      for (const auto rank : members) text += fmt::format("{}{}", text.back() == '[' ? "" : " ", rank.value);
      text += "]";
    }
  }
  return text;
}

namespace {

/// What the member at `index` sends (TrainerGroup::Sent). The operation may be one that will be refused.
std::int64_t bytes_given(const gpu::Operation& operation, int index, int size) {
  const auto whole = static_cast<std::int64_t>(std::max(operation.input.bytes, operation.output.bytes));
  const auto element = static_cast<std::int64_t>(core::size_of(operation.dtype));
  const auto counted = [&](gpu::PartCountsView counts) {
    const auto own = static_cast<std::size_t>(index);
    return own < counts.size() ? static_cast<std::int64_t>(counts[own]) * element : 0;
  };
  switch (operation.kind) {
    case gpu::OperationKind::all_reduce: {
      const std::int64_t own = core::even_part({0, whole / element}, size, index).size() * element;
      return whole - own + own * (size - 1);
    }
    case gpu::OperationKind::reduce_scatter:
      return whole - counted(operation.output_counts);
    case gpu::OperationKind::all_gather:
      return counted(operation.input_counts) * (size - 1);
    case gpu::OperationKind::all_to_all:
      return (operation.rows.input ? static_cast<std::int64_t>(operation.input_counts.total()) * element
                                   : static_cast<std::int64_t>(operation.input.bytes)) -
             counted(operation.input_counts);
    case gpu::OperationKind::broadcast:
      return operation.peer == index ? whole * (size - 1) : 0;
    case gpu::OperationKind::send:
      return whole;
    case gpu::OperationKind::receive:
    case gpu::OperationKind::barrier:
      return 0;
  }
  CHECK(false, "every operation is handled");
}

}  // namespace

/// One group of this rank's, with its stream.
class Sequencer::Member final : public TrainerGroup {
 public:
  Member(Sequencer& sequencer, std::size_t index, std::string name, gpu::Group& group,
         std::vector<core::Rank> members)
      : sequencer_(sequencer),
        index_(index),
        name_(std::move(name)),
        group_(group),
        members_(std::move(members)) {}

  Result<void> open() {
    auto& device = sequencer_.in_.world.device();
    stream_ = TRY(device.create_stream({"groups", 0}));
    asked_ = TRY(device.create_event());
    return {};
  }

  const std::string& name() const { return name_; }
  void describe_next(std::string what) { next_ = std::move(what); }
  const std::vector<core::Rank>& members() const override { return members_; }
  int index() const override { return group_.index(); }
  bool runs_in_launch_order() const override { return sequencer_.settings_.in_launch_order; }
  Sent sent() const override { return sent_; }

  Result<Posted> all_reduce(gpu::BufferView values, core::DType dtype, Reduction reduction) override {
    auto operation = of(gpu::OperationKind::all_reduce, dtype, reduction);
    operation.input = values;
    operation.output = values;
    return post(std::move(operation));
  }

  Result<Posted> reduce_scatter(gpu::ConstBufferView input, gpu::BufferView output, core::DType dtype,
                                Counts counts, Reduction reduction) override {
    auto operation = of(gpu::OperationKind::reduce_scatter, dtype, reduction);
    operation.input = input;
    operation.output = output;
    operation.output_counts = std::move(counts);
    return post(std::move(operation));
  }

  Result<Posted> all_gather(gpu::ConstBufferView input, gpu::BufferView output, core::DType dtype,
                            Counts counts) override {
    auto operation = of(gpu::OperationKind::all_gather, dtype);
    operation.input = input;
    operation.output = output;
    operation.input_counts = std::move(counts);
    return post(std::move(operation));
  }

  Result<Posted> all_to_all(gpu::ConstBufferView input, Counts sent, gpu::BufferView output, Counts taken,
                            core::DType dtype, Rows rows) override {
    auto operation = of(gpu::OperationKind::all_to_all, dtype);
    operation.input = input;
    operation.output = output;
    operation.input_counts = std::move(sent);
    operation.output_counts = std::move(taken);
    operation.rows = {rows.elements, std::move(rows.input), std::move(rows.output)};
    return post(std::move(operation));
  }

  Result<Posted> broadcast(gpu::BufferView values, core::DType dtype, int root) override {
    auto operation = of(gpu::OperationKind::broadcast, dtype);
    if (root == index()) operation.input = values;
    operation.output = values;
    operation.peer = root;
    return post(std::move(operation));
  }

  Result<Posted> send(gpu::ConstBufferView values, core::DType dtype, int to) override {
    auto operation = of(gpu::OperationKind::send, dtype);
    operation.input = values;
    operation.peer = to;
    return post(std::move(operation));
  }

  Result<Posted> receive(gpu::BufferView values, core::DType dtype, int from) override {
    auto operation = of(gpu::OperationKind::receive, dtype);
    operation.output = values;
    operation.peer = from;
    return post(std::move(operation));
  }

  Result<void> wait(Posted posted) override {
    const auto number = static_cast<std::uint64_t>(posted);
    if (number == 0 || number > posted_) {
      return core::fail(Errc::invalid_argument, "operation {} of group {} was not posted; {} were", number,
                        name_, posted_);
    }
    if (number <= waited_) return {};  // the operations of a stream end in their order
    const auto compute = sequencer_.in_.data.marks().compute();
    const auto found =
        std::find_if(over_.begin(), over_.end(), [&](const Over& over) { return over.number == number; });
    // Those that were posted before there was a compute stream have no event.
    if (compute == nullptr || found == over_.end()) {
      return sequencer_.meter_.exposed([&] {
        return sequencer_.in_.inbox.wait_collective(index_, name_, number,
                                                    sequencer_.settings_.trainer_deadline);
      });
    }
    compute->wait(found->event.get());
    waited_ = number;
    // Those before it have ended as well; their events serve again.
    for (auto over = over_.begin(); over != std::next(found); ++over) free_.push_back(std::move(over->event));
    over_.erase(over_.begin(), std::next(found));
    return {};
  }

 private:
  struct Over {
    std::uint64_t number = 0;
    gpu::Event event;
  };

  gpu::Operation of(gpu::OperationKind kind, core::DType dtype, Reduction reduction = Reduction::sum) const {
    gpu::Operation operation;
    operation.kind = kind;
    operation.dtype = dtype;
    operation.reduce = reduction == Reduction::sum       ? gpu::ReduceOp::sum
                       : reduction == Reduction::average ? gpu::ReduceOp::average
                       : reduction == Reduction::min     ? gpu::ReduceOp::min
                                                         : gpu::ReduceOp::max;
    operation.deadline = sequencer_.settings_.collective_deadline;
    return operation;
  }

  Result<Posted> post(gpu::Operation operation) {
    const auto about = std::exchange(next_, {});
    if (auto failure = sequencer_.in_.inbox.failure()) return tl::unexpected(*std::move(failure));
    TRY(sequencer_.lane_operations_.may_post(name_, index(), operation));
    TRY(sequencer_.wait_turn());
    const auto compute = sequencer_.in_.data.marks().compute();
    if (compute != nullptr) {
      compute->record(asked_.get());
      stream_->wait(asked_.get());
    }
    auto what = fmt::format("{} {} of group {}", gpu::name_of(operation.kind), posted_ + 1, name_);
    if (!about.empty()) what += fmt::format(" ({})", about);
    const auto began = std::make_shared<std::chrono::nanoseconds>();
    if (sequencer_.settings_.tracer != nullptr) {
      stream_->notify([began, &device = sequencer_.in_.world.device()] { *began = device.now(); });
    }
    if (sequencer_.gate_.step() != sequencer_.decided_) operation.step = sequencer_.gate_.step();
    const auto given = bytes_given(operation, index(), size());
    auto status = TRY(group_.post(std::move(operation), stream_.get()));
    sequencer_.lane_operations_.posted(name_);
    posted_ += 1;
    sent_.launches += 1;
    sent_.bytes += given;
    if (compute != nullptr) {
      auto event =
          free_.empty() ? TRY(sequencer_.in_.world.device().create_event()) : std::move(free_.back());
      if (!free_.empty()) free_.pop_back();
      stream_->record(event.get());
      over_.push_back({posted_, std::move(event)});
    }
    stream_->notify([this, began, number = posted_, what = std::move(what), status = std::move(status)] {
      over(number, what, *began, status->result().value_or(Result<void>{}));
    });
    return Posted{posted_};
  }

  /// From a thread of the device.
  void over(std::uint64_t number, const std::string& what, std::chrono::nanoseconds began,
            const Result<void>& result) {
    const auto& in = sequencer_.in_;
    if (sequencer_.settings_.tracer != nullptr) {
      sequencer_.settings_.tracer->add(
          {core::TraceEvent::Kind::span, "group " + name_, what, began, in.world.device().now(), 0, 0});
    }
    if (result) return in.inbox.collective_over(index_, number);
    auto failure = messages::failure_of(result.error());
    failure.message = what + ": " + failure.message;
    in.post(messages::Role::rank_supervisor, 0, messages::RankFailed{in.rank(), std::move(failure)});
  }

  Sequencer& sequencer_;
  std::size_t index_;
  std::string name_;
  gpu::Group& group_;
  std::vector<core::Rank> members_;
  std::string next_;  ///< what the next operation is about
  gpu::Event asked_;  ///< on "compute": what the operation reads is there
  std::uint64_t posted_ = 0;
  std::uint64_t waited_ = 0;  ///< the last of those that "compute" was told to wait for
  Sent sent_;
  std::deque<Over> over_;         ///< of operations that are not waited for, where there is a compute stream
  std::vector<gpu::Event> free_;  ///< to be recorded again
  gpu::Stream stream_;            // drains first
};

Sequencer::Sequencer(const SessionContext& context, const UnitGate& gate, StepMeter& meter, Settings settings)
    : in_(context),
      gate_(gate),
      meter_(meter),
      settings_(settings),
      lane_operations_(context.data.program(), gate) {}

Sequencer::~Sequencer() = default;

Result<void> Sequencer::add(std::string name, gpu::Group& group, std::vector<core::Rank> members) {
  auto member = std::make_unique<Member>(*this, members_.size(), std::move(name), group, std::move(members));
  TRY(member->open());
  members_.push_back(std::move(member));
  return {};
}

TrainerGroup* Sequencer::find(std::string_view name) const {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const auto& member) { return member->name() == name; });
  return found == members_.end() ? nullptr : found->get();
}

std::string Sequencer::names() const {
  std::vector<std::string_view> names;
  for (const auto& member : members_) names.push_back(member->name());
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

void Sequencer::describe_next(TrainerGroup& group, std::string what) {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const auto& member) { return member.get() == &group; });
  if (found != members_.end()) (*found)->describe_next(std::move(what));
}

void Sequencer::decided(core::Step step, bool committed) {
  decided_ = step;
  committed_ = committed;
}

Result<void> Sequencer::wait_turn() {
  if (!settings_.in_launch_order) return {};
  const auto before = last_before();
  if (in_.inbox.has_launched(before)) return {};
  return meter_.exposed([&] { return in_.inbox.wait_launched(before, settings_.trainer_deadline); });
}

std::int64_t Sequencer::last_before() const {
  const auto& program = in_.data.program();
  const auto& sequence = program.sequence();
  if (gate_.step() != decided_) {
    if (const auto ready = program.ready_by(gate_.passed()); ready > 0)
      return place_of_launch(sequence.size(), gate_.step(), ready - 1);
  }
  if (decided_.value < 0) return -1;
  for (std::size_t i = sequence.size(); i-- > 0;) {
    const auto& launch = program.launch(sequence[i]);
    if (committed_ || launch.is_verdict() || !launch.publishes())
      return place_of_launch(sequence.size(), decided_, i);
  }
  return -1;
}

}  // namespace troupe::actors
