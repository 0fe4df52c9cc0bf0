#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/launch/running_launcher.hpp"

namespace troupe::apps {

/// Two launchers of one job on this host, as on two, which meet at a port of the loopback interface.
class RunningNodes {
 public:
  /// `arguments` are those of both; the node ranks are given to them.
  /// So many are started.
  explicit RunningNodes(std::vector<std::string> arguments, std::vector<std::string> environment = {},
                        int nodes = 2);

  /// The arguments of another launcher for the same job.
  std::vector<std::string> arguments_of(int node) const;
  void start(int node);
  RunningLauncher& at(int node) { return *launchers_[static_cast<std::size_t>(node)]; }
  /// Waits until the ranks of both have written so many lines to stdout.
  bool wait_for_lines(std::size_t of_each);
  /// Waits for both, and expects that nothing is left of them.
  std::vector<Outcome> wait();
  int port() const { return port_; }

 private:
  int port_;
  std::vector<std::string> arguments_;
  std::vector<std::string> environment_;
  std::vector<std::unique_ptr<RunningLauncher>> launchers_;
};

/// What the launcher says from the first failure on, without what only one of them says.
std::vector<std::string> last_words(const Outcome& outcome);

}  // namespace troupe::apps
