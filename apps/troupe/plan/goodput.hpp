#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/result.hpp"

namespace troupe::apps {

/// A job and what goes wrong with it. Times are seconds unless their names say otherwise.
struct GoodputArguments {
  int ranks = 16384;  ///< devices
  int node_ranks = 8;
  int spare_nodes = 0;         ///< whose devices stand by
  int fewest_nodes = 0;        ///< the job goes on with at least this many; 0: all
  double mtbf_hours = 50'000;  ///< of a device, and what of its node counts for it
  double node_share = 0.5;     ///< of failures that take the node out of service; others take a process
  double repair_hours = 24;    ///< until a node is back
  double notice = 5;           ///< from a failure until the launcher knows which rank it is
  double form = 10;            ///< until the ranks of the next epoch are connected
  double start = 60;           ///< of a process, until it could join
  double load = 120;           ///< of a checkpoint by all ranks
  double take = 5;             ///< of a lost rank's state from its replicas' memory
  bool replicated = false;     ///< each rank's state is in the memory of another one, too
  bool restart = false;        ///< all processes are started anew after each failure
  double save_every = 0;       ///< 0: the interval that loses least
  double stall = 1;            ///< of training, per save
  double write = 60;           ///< from the stall until the save can be loaded
  double days = 54;
  int runs = 5;
  std::uint64_t seed = 1;
  bool json = false;
};

/// What one run of the job has lost, as parts of its whole time.
struct GoodputLosses {
  double saving = 0;      ///< stalls
  double recovering = 0;  ///< noticing, starting, forming, loading
  double again = 0;       ///< steps that were taken before
  double waiting = 0;     ///< no epoch, for want of nodes
  double fewer = 0;       ///< devices that stood still while others went on without them

  double sum() const { return saving + recovering + again + waiting + fewer; }
};

struct GoodputRun {
  GoodputLosses lost;
  int failures = 0;
  int epochs = 0;
};

/// A job in virtual time, from failure to failure. The machine of the launcher decides what is done about
/// each (actors/launch/node_agent.hpp); what that takes is as the arguments say. Errc::invalid_argument names
/// what cannot be.
core::Result<GoodputRun> simulate_goodput(const GoodputArguments& arguments, double save_every,
                                          std::uint64_t seed);

/// The mean of several runs, and the same for other intervals between saves.
core::Result<std::string> report_goodput(const GoodputArguments& arguments);

}  // namespace troupe::apps
