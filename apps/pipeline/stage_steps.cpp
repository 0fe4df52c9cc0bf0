#include "apps/pipeline/stage_steps.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "core/errors.hpp"
#include "core/list.hpp"
#include "core/schedule/schedule_run.hpp"
#include "core/schedule/schedule_slots.hpp"

namespace troupe::apps {

using core::PassKind;

namespace {

using Kind = StageAction::Kind;

/// Rows received ahead of the running pass, per link.
constexpr std::size_t kAhead = 1;

bool is_first_place(const core::PipelineSchedule&, int stage, const core::PipelinePass& pass) {
  return stage == 0 && pass.chunk == 0;
}

bool is_last_place(const core::PipelineSchedule& schedule, int stage, const core::PipelinePass& pass) {
  return stage == schedule.stages - 1 && pass.chunk == schedule.chunks - 1;
}

bool has_head(const core::PipelineSchedule& schedule, HeadMessages heads, const core::PipelinePass& pass) {
  if (heads == HeadMessages::none || pass.kind == PassKind::forward) return false;
  return heads == HeadMessages::each || pass.microbatch + 1 == schedule.microbatches;
}

/// Whether the pass's backward of the inputs multiplies by the output layer, or sends its factors.
bool gives_head(const core::PipelineSchedule& schedule, int stage, HeadMessages heads,
                const core::PipelinePass& pass) {
  return pass.kind != PassKind::backward_weight && is_last_place(schedule, stage, pass) &&
         has_head(schedule, heads, pass);
}

/// Whether the pass's backward adds the rows to the embedding's gradient.
bool takes_head(const core::PipelineSchedule& schedule, int stage, HeadMessages heads,
                const core::PipelinePass& pass) {
  return pass.kind != PassKind::backward_input && is_first_place(schedule, stage, pass) &&
         has_head(schedule, heads, pass);
}

/// A message between two steps.
struct Message {
  int from = 0, to = 0;                  ///< stages
  std::size_t sender = 0, receiver = 0;  ///< steps of them
  bool is_head = false;
  std::optional<std::size_t> before{};  ///< the previous one in its channel
  std::optional<double> time{};         ///< when it was transferred
  std::size_t found = 0;                ///< and its number in that order
};

/// Runs all stages against each other, as their memory allows.
class MessageOrder {
 public:
  MessageOrder(const core::PipelineSchedule& schedule, HeadMessages heads)
      : schedule_(schedule), heads_(heads) {
    for (int stage = 0; stage < schedule.stages; ++stage) {
      stages_.push_back({plan_steps(schedule, stage), {}, {}, {}, {}});
      stages_.back().ends.resize(stages_.back().steps.size());
      stages_.back().in.resize(stages_.back().steps.size());
      stages_.back().out.resize(stages_.back().steps.size());
    }
    connect();
    while (advance()) {
    }
    for (const Message& message : messages_) CHECK(message.time, "a checked schedule comes to its end");
  }

  /// The messages of this stage, in the common order.
  std::vector<const Message*> of(int stage) const {
    std::vector<const Message*> own;
    for (const Message& message : messages_) {
      if (message.from == stage || message.to == stage) own.push_back(&message);
    }
    std::sort(own.begin(), own.end(), [](const Message* a, const Message* b) {
      return std::tie(*a->time, a->found) < std::tie(*b->time, b->found);
    });
    return own;
  }
  const std::vector<StageStep>& steps(int stage) const { return at(stage).steps; }
  /// The number of its stage's steps that come before a message is posted.
  std::size_t earliest(const Message& message, int stage) const {
    if (message.from == stage) return message.sender + 1;
    return message.is_head ? after_last_taken(message) : at(stage).steps[message.receiver].ready;
  }

 private:
  struct Stage {
    std::vector<StageStep> steps;
    std::vector<std::optional<double>> ends;        ///< of steps
    std::vector<std::vector<std::size_t>> in, out;  ///< messages, by step
    std::size_t next = 0;
  };
  Stage& at(int stage) { return stages_[stage]; }
  const Stage& at(int stage) const { return stages_[stage]; }

  void add(Message message, std::optional<std::size_t>& last) {
    message.before = last;
    last = messages_.size();
    at(message.from).out[message.sender].push_back(messages_.size());
    at(message.to).in[message.receiver].push_back(messages_.size());
    messages_.push_back(message);
  }

  /// The n-th message sent through a channel is the n-th one received.
  void connect() {
    std::map<core::ScheduleLink, std::vector<std::size_t>> sent;
    std::map<int, std::size_t> given;  // by microbatch
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      const auto& steps = at(stage).steps;
      for (std::size_t i = 0; i < steps.size(); ++i) {
        if (steps[i].to) sent[*steps[i].to].push_back(i);
        if (gives_head(schedule_, stage, heads_, steps[i].pass)) given[steps[i].pass.microbatch] = i;
      }
    }
    std::map<core::ScheduleLink, std::size_t> taken;
    std::map<core::ScheduleLink, std::optional<std::size_t>> last;
    std::optional<std::size_t> last_head;
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      const auto& steps = at(stage).steps;
      for (std::size_t i = 0; i < steps.size(); ++i) {
        const auto& from = steps[i].from;
        if (from) add({from->from, stage, sent.at(*from).at(taken[*from]++), i, false}, last[*from]);
        if (takes_head(schedule_, stage, heads_, steps[i].pass))
          add({schedule_.stages - 1, stage, given.at(steps[i].pass.microbatch), i, true}, last_head);
      }
    }
  }

  bool advance() {
    bool moved = false;
    for (Message& message : messages_) moved = pass_over(message) || moved;
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      while (run_next(at(stage))) moved = true;
    }
    return moved;
  }

  bool pass_over(Message& message) {
    if (message.time) return false;
    const auto& sent = at(message.from).ends[message.sender];
    if (!sent) return false;
    double time = *sent;
    const std::size_t ready = earliest(message, message.to);
    if (ready > 0) {
      const auto& free = at(message.to).ends[ready - 1];
      if (!free) return false;
      time = std::max(time, *free);
    }
    auto befores = sends_before(message);
    if (message.before) befores.push_back(*message.before);
    for (const std::size_t before : befores) {
      if (!messages_[before].time) return false;
      time = std::max(time, *messages_[before].time);
    }
    message.time = time;
    message.found = found_++;
    return true;
  }

  /// The receiver's messages that are sent from the memory into which this one is received.
  std::vector<std::size_t> sends_before(const Message& message) const {
    std::vector<std::size_t> found;
    if (message.is_head) return found;
    const auto& steps = at(message.to).steps;
    const StageStep& step = steps[message.receiver];
    if (step.pass.kind == PassKind::forward) return found;
    for (std::size_t i = message.receiver; i-- > 0;) {
      if (steps[i].pass.kind == PassKind::forward || !steps[i].to ||
          steps[i].slots.activations != step.slots.activations)
        continue;
      for (const std::size_t out : at(message.to).out[i]) {
        if (!messages_[out].is_head) found.push_back(out);
      }
      break;
    }
    return found;
  }

  bool run_next(Stage& stage) {
    if (stage.next == stage.steps.size()) return false;
    double start = stage.next == 0 ? 0 : *stage.ends[stage.next - 1];
    const auto after = [&](const std::vector<std::size_t>& messages) {
      for (const std::size_t message : messages) {
        if (!messages_[message].time) return false;
        start = std::max(start, *messages_[message].time);
      }
      return true;
    };
    if (!after(stage.in[stage.next]) || !after(sent_before(stage))) return false;
    stage.ends[stage.next] = start + core::PassDurations{}.of(stage.steps[stage.next].pass.kind);
    ++stage.next;
    return true;
  }

  /// The messages that must have been sent before the next step overwrites their memory.
  std::vector<std::size_t> sent_before(const Stage& stage) const {
    std::vector<std::size_t> found;
    const StageStep& step = stage.steps[stage.next];
    const bool is_forward = step.pass.kind == PassKind::forward;
    std::size_t heads = 0;
    for (std::size_t i = stage.next; i-- > 0;) {
      const bool same_rows = stage.steps[i].slots.activations == step.slots.activations &&
                             (stage.steps[i].pass.kind == PassKind::forward) == is_forward;
      for (const std::size_t out : stage.out[i]) {
        // There is memory for as many parts of gradients as there are stages.
        if (messages_[out].is_head && ++heads < static_cast<std::size_t>(schedule_.stages)) continue;
        if (messages_[out].is_head || same_rows) found.push_back(out);
      }
    }
    return found;
  }

  /// The first stage's memory holds one part of a gradient at a time.
  std::size_t after_last_taken(const Message& message) const {
    const Stage& stage = at(message.to);
    for (std::size_t i = message.receiver; i-- > 0;) {
      for (const std::size_t in : stage.in[i]) {
        if (messages_[in].is_head) return i + 1;
      }
    }
    return 0;
  }

  const core::PipelineSchedule& schedule_;
  HeadMessages heads_;
  core::List<int, Stage> stages_;
  std::vector<Message> messages_;
  std::size_t found_ = 0;
};

}  // namespace

std::vector<StageStep> plan_steps(const core::PipelineSchedule& schedule, int stage) {
  const auto& passes = schedule.passes[static_cast<std::size_t>(stage)];
  const auto activations = core::plan_slots(passes), inputs = core::plan_input_slots(passes);
  std::vector<StageStep> steps;
  std::map<int, std::size_t> free_input;   // per slot, the steps that have ended when its last user is done
  std::map<int, std::size_t> free, begun;  // as above for activations, and when its present user took it
  for (std::size_t i = 0; i < passes.size(); ++i) {
    StageStep step{passes[i],
                   {activations[i], inputs[i]},
                   core::receives(schedule, stage, passes[i]),
                   core::sends(schedule, stage, passes[i]),
                   0};
    const bool is_forward = step.pass.kind == PassKind::forward;
    if (is_forward) begun[activations[i]] = free[activations[i]];
    step.ready = is_forward ? free_input[inputs[i]] : begun[activations[i]];
    if (step.pass.kind == PassKind::backward || step.pass.kind == PassKind::backward_weight) {
      free[activations[i]] = i + 1;
      free_input[inputs[i]] = i + 1;
    }
    steps.push_back(step);
  }
  return steps;
}

std::vector<StageAction> post_at_once(const core::PipelineSchedule& schedule, int stage, HeadMessages heads) {
  const auto steps = plan_steps(schedule, stage);
  struct Queue {
    std::vector<std::size_t> steps;  // those that receive from a link, in order
    std::size_t posted = 0;
  };
  std::map<core::ScheduleLink, Queue> queues;
  std::vector<std::size_t> taking;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].from) queues[*steps[i].from].steps.push_back(i);
    if (takes_head(schedule, stage, heads, steps[i].pass)) taking.push_back(i);
  }
  std::vector<StageAction> actions;
  std::size_t taken = 0;
  if (!taking.empty()) actions.push_back({Kind::take_head, taking[taken++]});
  for (std::size_t now = 0; now < steps.size(); ++now) {
    for (auto& [link, queue] : queues) {
      const auto posted = queue.steps.begin() + static_cast<std::ptrdiff_t>(queue.posted);
      auto ahead = static_cast<std::size_t>(posted - std::upper_bound(queue.steps.begin(), posted, now));
      for (; queue.posted < queue.steps.size(); ++queue.posted) {
        const std::size_t next = queue.steps[queue.posted];
        if (steps[next].ready > now || (next > now && ahead++ == kAhead)) break;
        actions.push_back({Kind::receive, next});
      }
    }
    actions.push_back({Kind::run, now});
    if (gives_head(schedule, stage, heads, steps[now].pass)) actions.push_back({Kind::give_head, now});
    if (steps[now].to) actions.push_back({Kind::send, now});
    const bool has_taken = takes_head(schedule, stage, heads, steps[now].pass);
    if (has_taken && taken < taking.size()) actions.push_back({Kind::take_head, taking[taken++]});
  }
  return actions;
}

std::vector<StageAction> post_in_one_order(const core::PipelineSchedule& schedule, int stage,
                                           HeadMessages heads) {
  const MessageOrder order(schedule, heads);
  const auto& steps = order.steps(stage);
  std::vector<StageAction> actions;
  std::size_t done = 0;
  const auto run_until = [&](std::size_t end) {
    for (; done < end; ++done) actions.push_back({Kind::run, done});
  };
  for (const Message* message : order.of(stage)) {
    run_until(order.earliest(*message, stage));
    if (message->from == stage) {
      actions.push_back({message->is_head ? Kind::give_head : Kind::send, message->sender});
    } else {
      CHECK(message->receiver >= done, "rows are received before their pass");
      actions.push_back({message->is_head ? Kind::take_head : Kind::receive, message->receiver});
    }
  }
  run_until(steps.size());
  return actions;
}

}  // namespace troupe::apps
