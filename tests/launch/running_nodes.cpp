#include "tests/launch/running_nodes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "apps/troupe/launch/ports.hpp"

namespace troupe::apps {

RunningNodes::RunningNodes(std::vector<std::string> arguments, std::vector<std::string> environment,
                           int nodes)
    : port_(ReservedPort::any()->number()),
      arguments_(std::move(arguments)),
      environment_(std::move(environment)) {
  launchers_.resize(2);
  for (int node = 0; node < nodes; ++node) start(node);
}

std::vector<std::string> RunningNodes::arguments_of(int node) const {
  std::vector<std::string> words{"--nnodes",        "2",
                                 "--node-rank",     std::to_string(node),
                                 "--rdzv-conf",     "join_timeout=30",
                                 "--rdzv-endpoint", "127.0.0.1:" + std::to_string(port_)};
  words.insert(words.end(), arguments_.begin(), arguments_.end());
  return words;
}

void RunningNodes::start(int node) {
  launchers_[static_cast<std::size_t>(node)] =
      std::make_unique<RunningLauncher>(arguments_of(node), environment_);
}

bool RunningNodes::wait_for_lines(std::size_t of_each) {
  return at(0).wait_for_lines(of_each) && at(1).wait_for_lines(of_each);
}

std::vector<Outcome> RunningNodes::wait() {
  std::vector<Outcome> outcomes;
  for (const int node : {0, 1}) outcomes.push_back(at(node).wait());
  for (const int node : {0, 1}) {
    EXPECT_TRUE(eventually([&] { return at(node).processes().empty(); }, std::chrono::seconds(5)));
    EXPECT_TRUE(at(node).segments().empty()) << at(node).segments().front() << " is left";
  }
  return outcomes;
}

std::vector<std::string> last_words(const Outcome& outcome) {
  std::vector<std::string> lines = lines_of(outcome.err);
  const auto first = std::ranges::find_if(
      lines, [](const std::string& line) { return line.find("first failure") != std::string::npos; });
  lines.erase(lines.begin(), first);
  return lines;
}

}  // namespace troupe::apps
