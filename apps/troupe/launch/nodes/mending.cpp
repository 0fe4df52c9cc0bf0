#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "apps/troupe/launch/nodes/leader.hpp"
#include "core/errors.hpp"
#include "posix/entropy.hpp"

// The part of the Leader that tells processes which stay of the generation in which they go on.

namespace troupe::apps {

using core::Result;

std::vector<std::string> Leader::descriptions_of(const actors::ReplaceRanks& replaced) const {
  std::vector<std::string> lines;
  std::vector<int> gone;
  const auto is_started = [](const auto& loss) { return loss.remedy == actors::Remedy::start_again; };
  auto restarts =
      agent_->machine().restarts() - static_cast<int>(std::ranges::count_if(replaced.losses, is_started));
  for (const auto& [ending, remedy] : replaced.losses) {
    if (remedy == actors::Remedy::fewer_ranks) {
      gone.push_back(ending.rank);
    } else if (remedy == actors::Remedy::spare) {
      const auto slot = replaced.slots[static_cast<std::size_t>(ending.rank)];
      lines.push_back(fmt::format("spare {} is rank {} now, the others stay", slot, ending.rank));
    } else {
      lines.push_back(fmt::format("rank {} is started again, the others stay: restart {} of {}", ending.rank,
                                  ++restarts, job_.options.max_restarts));
    }
  }
  const auto ranks = fmt::format("{} rank{}", replaced.slots.size(), replaced.slots.size() == 1 ? "" : "s");
  if (gone.size() == 1) {
    lines.push_back(
        fmt::format("the job goes on with {}: those after rank {} are one less now", ranks, gone[0]));
  } else if (!gone.empty()) {
    lines.push_back(fmt::format("the job goes on with {}, without ranks {}: those after them have moved down",
                                ranks, fmt::join(gone, ", ")));
  }
  return lines;
}

Result<void> Leader::replacing(const actors::ReplaceRanks& replaced) {
  // The others wait for this, and for nothing else.
  const Generation next = TRY(next_generation(replaced.generation, replaced.slots));
  TRY(announce(next));
  report_.ranks.clear();
  for (const auto& loss : replaced.losses) report_.ranks.push_back(report_of(loss.ending));
  replaced_.insert(replaced_.end(), report_.ranks.begin(), report_.ranks.end());
  report_.cause = 0;
  auto lines = describe(report_);
  for (std::string& line : descriptions_of(replaced)) lines.push_back(std::move(line));
  go_on(next, lines);
  return {};
}

Result<void> Leader::forming_again(const actors::FormAgain& again) {
  const Generation next = TRY(next_generation(again.generation, again.slots));
  TRY(announce(next));
  go_on(next, {"the ranks have lost each other, and all of them run: they stay, and connect anew"});
  return {};
}

Result<void> Leader::ask_to_wait(const actors::AskToWait& asked) {
  tell_all(WaitForMore{asked.generation});
  return actors::ask_to_wait(epoch_file(job_), epoch_of(asked.generation));
}

Result<void> Leader::admitting(const actors::AdmitSpares& admitted) {
  const Generation next = TRY(next_generation(admitted.generation, admitted.slots));
  TRY(announce(next));
  go_on(next, {fmt::format("the job goes on with {} ranks, {} more than before", admitted.slots.size(),
                           admitted.slots.size() - generation_.seats.size())});
  return {};
}

/// Rank 0 listens on the node where it is.
Result<Generation> Leader::next_generation(int number, const std::vector<int>& slots) {
  Generation next = generation_;
  next.number = number;
  next.fence_token = posix::unique_name();
  next.seats.clear();
  for (const int slot : slots) next.seats.push_back({slot, node_of(slot)});
  const int node = next.seats.front().node;
  if (node == 0) {
    ports_.back() = TRY(ReservedPort::any());
    next.control_host = job_.master_addr;
    next.control_port = ports_.back().number();
    return next;
  }
  auto& ports = nodes_[node].free_ports;
  if (ports.empty())
    return core::fail(core::Errc::unavailable, "{} has said no port where rank 0 could listen",
                      name_of(member(node)));
  next.control_host = member(node).address;
  next.control_port = ports.front();
  ports.erase(ports.begin());
  return next;
}

/// The next launcher must know of each epoch that a rank may hear of, or would give its number to another.
Result<void> Leader::announce(const Generation& next) {
  note_job(next.number);
  if (!job_.keeps_processes) return {};
  return actors::announce_epoch(
      epoch_file(job_),
      {epoch_of(next.number), next.control_host, static_cast<std::uint16_t>(next.control_port), next.seats});
}

/// Comes after announce(): ranks are told before people are.
void Leader::go_on(const Generation& next, const std::vector<std::string>& lines) {
  generation_ = next;
  for (const Node& node : nodes_) send_generation(node, false, lines);
  for (const std::string& line : lines) terminal_.say(line);
  local_.go_on(generation_);
  report_ = GenerationReport{};
  report_.generation = next.number;
  report_.started = clock_.now();
}

void Leader::send_generation(const Node& node, bool is_anew, const std::vector<std::string>& lines) const {
  if (!node.link) return;
  Begin message{generation_.number,
                is_anew,
                generation_.master_addr,
                generation_.master_port,
                generation_.control_host,
                generation_.control_port,
                generation_.fence_token,
                {},
                {},
                lines};
  for (const auto& seat : generation_.seats) {
    message.slots.push_back(seat.slot);
    message.nodes.push_back(seat.node);
  }
  node.link->send(message);
}

}  // namespace troupe::apps
