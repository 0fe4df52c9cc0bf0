#include "apps/pipeline/session_links.hpp"

#include <fmt/format.h>

#include <string>

#include "core/errors.hpp"

namespace troupe::apps {

using actors::TrainerGroup;
using core::Result;
using core::ScheduleLink;

namespace {

/// A colour for the neighbours `first` and first + 1 of the ring, in which neither has another neighbour.
int colour_of(int first, int stages) {
  const bool is_odd_end = first == stages - 1 && stages % 2 == 1;
  return is_odd_end ? 2 : first % 2;
}

std::string name_of_group(bool is_forward, int colour) {
  return fmt::format("stage-{}-{}", is_forward ? "outputs" : "gradients", colour);
}

/// The places of the ring at which a link begins.
int ring_size(int stages, bool wraps) {
  return wraps ? stages : stages - 1;
}

}  // namespace

std::vector<actors::TrainerGroupSpec> link_groups(core::WorldSize world, int stages, bool wraps) {
  const int pipelines = world.value / stages;
  std::vector<actors::TrainerGroupSpec> groups;
  for (const bool is_forward : {true, false}) {
    for (int colour = 0; colour < 3; ++colour) {
      actors::TrainerGroupSpec group{name_of_group(is_forward, colour), {}};
      std::vector<bool> paired(static_cast<std::size_t>(stages), false);
      for (int first = 0; first < ring_size(stages, wraps); ++first) {
        if (colour_of(first, stages) != colour) continue;
        const int second = (first + 1) % stages;
        paired[static_cast<std::size_t>(first)] = paired[static_cast<std::size_t>(second)] = true;
        for (int i = 0; i < pipelines; ++i)
          group.members.push_back({{first * pipelines + i}, {second * pipelines + i}});
      }
      if (group.members.empty()) continue;
      for (int stage = 0; stage < stages; ++stage) {
        if (paired[static_cast<std::size_t>(stage)]) continue;
        for (int i = 0; i < pipelines; ++i) group.members.push_back({{stage * pipelines + i}});
      }
      groups.push_back(std::move(group));
    }
  }
  return groups;
}

Result<SessionLinks> SessionLinks::open(actors::Session& session, int stages, int stage, bool wraps,
                                        core::DType dtype) {
  SessionLinks links;
  links.dtype_ = dtype;
  for (int first = 0; first < ring_size(stages, wraps); ++first) {
    const int second = (first + 1) % stages;
    if (first != stage && second != stage) continue;
    const int colour = colour_of(first, stages);
    links.groups_[{first, second, true}] = TRY(session.group(name_of_group(true, colour)));
    links.groups_[{second, first, false}] = TRY(session.group(name_of_group(false, colour)));
  }
  return links;
}

// To or from the other member of the two; who waits for the last message waits for those before it.
Result<StageLinks::Posted> SessionLinks::send(const ScheduleLink& link, const StageRows& rows) {
  TrainerGroup& to = group(link);
  TrainerGroup::Posted last{};
  for (const auto& message : rows) last = TRY(to.send(message, dtype_, 1 - to.index()));
  return Posted{static_cast<std::uint64_t>(last)};
}

Result<StageLinks::Posted> SessionLinks::receive(const ScheduleLink& link, const StageRows& rows) {
  TrainerGroup& from = group(link);
  TrainerGroup::Posted last{};
  for (const auto& message : rows) last = TRY(from.receive(message, dtype_, 1 - from.index()));
  return Posted{static_cast<std::uint64_t>(last)};
}

Result<void> SessionLinks::wait(const ScheduleLink& link, Posted posted) {
  return group(link).wait(TrainerGroup::Posted{static_cast<std::uint64_t>(posted)});
}

}  // namespace troupe::apps
