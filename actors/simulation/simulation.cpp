#include "actors/simulation/simulation.hpp"

#include <fmt/format.h>

#include "core/program/job_programs.hpp"
#include "core/step_count.hpp"

namespace troupe::actors {

namespace {

SimulatedWiresOptions wires_options(const SimulationOptions& options) {
  SimulatedWiresOptions wires;
  wires.world = options.ranks;
  wires.seed = options.seed;
  return wires;
}

}  // namespace

Simulation::Simulation(SimulationOptions options)
    : options_(std::move(options)),
      own_loop_(std::make_unique<EventLoop>(options_.seed)),
      loop_(*own_loop_),
      fabric_(loop_, options_.fabric),
      wires_(loop_, wires_options(options_)),
      surroundings_(surroundings()) {
  std::vector<SimulatedProcess*> processes;
  for (int rank = 0; rank < options_.ranks.value; ++rank) {
    own_processes_.push_back(
        std::make_unique<SimulatedProcess>(loop_, options_.device, options_.checks_order));
    processes.push_back(own_processes_.back().get());
  }
  add_ranks(processes);
}

Simulation::Simulation(SimulationOptions options, EventLoop& loop,
                       const std::vector<SimulatedProcess*>& processes)
    : options_(std::move(options)),
      loop_(loop),
      fabric_(loop_, options_.fabric),
      wires_(loop_, wires_options(options_)),
      surroundings_(surroundings()) {
  add_ranks(processes);
}

SimulatedSurroundings Simulation::surroundings() {
  SimulatedSurroundings surroundings{loop_,
                                     fabric_,
                                     monitor_,
                                     options_.seed,
                                     options_.storage,
                                     std::make_shared<Mailboxes>(),
                                     std::make_shared<core::KnownPrograms>(),
                                     options_.local_storages,
                                     options_.io_delay,
                                     options_.local_io_delays};
  surroundings.entered = [this](const auto& role, std::string_view state) { on_state(role, state); };
  surroundings.end_process = [this](core::Rank rank) {
    inject({.kind = SimulatedFault::Kind::kill, .rank = rank});
  };
  surroundings.epoch = options_.epoch;
  surroundings.goes_on = options_.goes_on;
  surroundings.others_stand_by = options_.others_stand_by;
  return surroundings;
}

void Simulation::add_ranks(const std::vector<SimulatedProcess*>& processes) {
  for (int rank = 0; rank < options_.ranks.value; ++rank) {
    ranks_.push_back(std::make_unique<SimulatedRank>(surroundings_, core::Rank{rank}, options_.ranks,
                                                     *processes[static_cast<std::size_t>(rank)]));
  }
}

Simulation::~Simulation() = default;

void Simulation::connect() {
  for (auto& rank : ranks_) {
    rank->connect_with([this, &rank = *rank] {
      return wires_.open(rank.rank(), [&rank](NetworkEvent event) { rank.on_network(std::move(event)); });
    });
  }
}

void Simulation::inject(const SimulatedFault& fault) {
  auto& victim = rank(fault.rank);
  if (victim.is_dead()) return;
  switch (fault.kind) {
    case SimulatedFault::Kind::kill:
      wires_.kill(fault.rank);
      victim.kill();
      break;
    case SimulatedFault::Kind::hang:
      fabric_.hang(fault.rank);
      break;
    case SimulatedFault::Kind::slow:
      victim.simulated_device().set_slowdown(fault.factor);
      fabric_.slow_down(fault.rank, fault.factor);
      break;
  }
}

void Simulation::on_state(const messages::Address& role, std::string_view state) {
  for (const auto& fault : options_.faults) {
    if (fault.role == role.role && fault.rank == role.rank && fault.state == state)
      loop_.schedule({}, "fault", [this, fault] { inject(fault); });
  }
}

SimulationReport Simulation::run(const Trainer& trainer) {
  connect();
  for (auto& rank : ranks_) rank->run_trainer(trainer);
  for (const auto& fault : options_.faults) {
    if (!fault.role) loop_.schedule(fault.at, "fault", [this, fault] { inject(fault); });
  }
  std::size_t ended = 0;
  // The run ends when all have ended, so it suffices to check the first that has not.
  auto all_ended = [&] {
    while (ended < ranks_.size() && ranks_[ended]->has_ended()) ++ended;
    return ended == ranks_.size();
  };
  auto stop = loop_.run_until(all_ended, {options_.time_limit, options_.event_limit});
  if (stop != EventLoop::Stop::condition) report_stuck(stop);
  SimulationReport report;
  report.trace_hash = loop_.trace_hash();
  report.virtual_time = loop_.now();
  report.steps_committed = core::steps_through(monitor_.last_committed()).value;
  report.events = loop_.events();
  report.violations = monitor_.violations();
  report.saves = monitor_.saves();
  report.local_saves = monitor_.local_saves();
  for (auto& rank : ranks_) {
    report.messages += rank->message_count();
    report.results.push_back(rank->result());
  }
  return report;
}

void Simulation::report_stuck(EventLoop::Stop stop) {
  const char* why = stop == EventLoop::Stop::quiet        ? "nothing is left to happen"
                    : stop == EventLoop::Stop::time_limit ? "the virtual time limit has passed"
                                                          : "the event limit is reached";
  for (auto& rank : ranks_) {
    if (rank->has_ended()) continue;
    monitor_.violate(fmt::format("LV-1: {}, and the trainer of rank {} has not ended\n{}", why,
                                 rank->rank().value, render(rank->wait_reports(), loop_.now())));
  }
}

}  // namespace troupe::actors
