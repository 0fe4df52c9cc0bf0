// Ranks that are stopped or killed in set-up, in a step, in a save and at the end, over meshes of every kind:
// the one to whom it happened is named, and nobody else.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/random.hpp"
#include "tests/processes/gpt_job.hpp"
#include "tests/support/environment.hpp"

namespace troupe::tests {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct Mesh {
  int ranks;
  std::vector<std::string> options;
};

const std::vector<Mesh>& meshes_of_every_kind() {
  static const std::vector<Mesh> all{
      {2, {"--strategy", "ddp"}},
      {3, {"--strategy", "zero1"}},
      {4, {"--strategy", "zero3"}},
      {2, {"--collectives", "tcp"}},
      {4, {"--tensor-parallel", "2"}},
      {2, {"--pipeline-parallel", "2"}},
      {4, {"--pipeline-parallel", "2", "--microbatches", "2"}},
      {2, {"--context-parallel", "2"}},
      {2, {"--experts", "4", "--expert-parallel", "2"}},
  };
  return all;
}

enum class Phase : std::uint8_t { set_up, step, save, end };
constexpr const char* kPhases[] = {"set-up", "a step", "a save", "the end"};

struct Stop {
  std::string id;
  Mesh mesh;
  Phase phase = Phase::step;
  int victim = 0;
  int signal = SIGSTOP;
  microseconds delay{};

  std::string to_string() const {
    return fmt::format("signal {} to rank {} of {} ({}) {} us after {} began", signal, victim, mesh.ranks,
                       fmt::join(mesh.options, " "), delay.count(), kPhases[static_cast<int>(phase)]);
  }
};

/// What a stop came to: nothing wrong, or a sentence about it.
struct StopEnd {
  std::optional<std::string> wrong;
  bool hit = false;
  milliseconds until_end{};
};

/// Ranks of which any line says that they failed, were lost or are silent.
std::set<int> named_in(const std::string& output) {
  static const std::regex kNamed(
      "(?:first failure: |lost |heard from |connection to |waits for |\\] )rank ([0-9]+)(?: failed| was "
      "lost|[ ,:;]|$)");
  static const std::regex kSaysNothingWrong("\\] rank [0-9]+ (ended because|of|sends in|\\(pid)");
  std::set<int> named;
  for (std::sregex_iterator found(output.begin(), output.end(), kNamed), end; found != end; ++found) {
    const auto rest = output.substr(static_cast<std::size_t>(found->position()), 40);
    if (!std::regex_search(rest, kSaysNothingWrong, std::regex_constants::match_continuous))
      named.insert(std::stoi((*found)[1]));
  }
  return named;
}

class Stops : public testing::Test {
 protected:
  ScratchFolder folder_;
  std::string text_ = write_sample_text(folder_);

  GptJob job_of(const Stop& stop) const {
    const int steps = stop.phase == Phase::end ? 20 : 1'000'000;
    GptJob job{stop.mesh.ranks, steps, {"--rdzv-id", stop.id}, stop.mesh.options};
    job.trainer_options.insert(job.trainer_options.end(),
                               {"--heads", "2", "--learning-rate", "0.001", "--checkpoints",
                                folder_.path(stop.id + "-saves"), "--save-every", "3"});
    return job;
  }

  bool has_begun(const Stop& stop) const {
    switch (stop.phase) {
      case Phase::set_up:
        return true;
      case Phase::step:
        return !read_record(folder_.path(stop.id)).losses.empty();
      case Phase::save:
        return count_checkpoints(folder_.path(stop.id + "-saves")) > 0;
      case Phase::end:
        return read_record(folder_.path(stop.id)).losses.size() == 20;
    }
    return false;
  }

  StopEnd perform(const Stop& stop) const {
    std::optional<steady_clock::time_point> moment;
    const auto ready = [&](int) {
      if (!moment && has_begun(stop)) moment = steady_clock::now() + stop.delay;
      return moment && steady_clock::now() >= *moment;
    };

    const auto stopped = run_and_signal(gpt_command(job_of(stop), text_, folder_.path(stop.id)), stop.id,
                                        stop.victim, ready, stop.signal, std::chrono::seconds(90));

    const auto& [code, output] = stopped.result;
    StopEnd end{{}, stopped.hit, std::chrono::duration_cast<milliseconds>(stopped.until_end)};
    auto others = named_in(output);
    const bool is_named = others.erase(stop.victim) != 0;
    // At the end a rank may have done all that others wait for.
    if (stop.phase == Phase::end && code == 0) return end;
    if (!stopped.hit || code != 1 || !is_named || !others.empty() ||
        output.find(fmt::format("first failure: rank {} ", stop.victim)) == std::string::npos) {
      end.wrong = fmt::format("{}: exit code {}, innocent and named {}:\n{}", stop.to_string(), code,
                              fmt::join(others, ", "), output);
    }
    return end;
  }
};

std::vector<Stop> random_stops(std::uint64_t count, std::uint64_t seed) {
  const core::CounterRandom random(seed, "stops");
  std::vector<Stop> stops;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto& meshes = meshes_of_every_kind();
    Stop stop{fmt::format("stop{}-{}", i, getpid()), meshes[(i + seed) % meshes.size()],
              static_cast<Phase>(i % 4)};
    stop.victim = static_cast<int>(random.below(static_cast<std::uint32_t>(stop.mesh.ranks), 3 * i));
    stop.signal = random.below(4, 3 * i + 1) == 0 ? SIGKILL : SIGSTOP;
    const std::uint32_t longest[] = {150'000, 400'000, 60'000, 40'000};
    stop.delay = microseconds(random.below(longest[i % 4], 3 * i + 2));
    stops.push_back(std::move(stop));
  }
  return stops;
}

/// TROUPE_STOPS and TROUPE_STOP_SEED choose another number of stops and other moments. Jobs of which a rank
/// is stopped mostly wait: some are run at once. In set-up they wait for a minute, which is only done when
/// many are asked for.
TEST_F(Stops, NameOnlyTheRankThatWasStoppedOrKilled) {
  constexpr std::uint64_t kInTheSuite = 12;
  const auto count = number_in_environment("TROUPE_STOPS", kInTheSuite);
  const auto seed = number_in_environment("TROUPE_STOP_SEED", static_cast<std::uint64_t>(getpid()));
  auto stops = random_stops(count, seed);
  for (auto& stop : stops) {
    if (count <= kInTheSuite && stop.phase == Phase::set_up) stop.signal = SIGKILL;
  }
  std::vector<StopEnd> ends(stops.size());
  std::atomic<std::size_t> next{0};

  std::vector<std::thread> at_once;
  for (std::uint64_t i = 0; i < number_in_environment("TROUPE_STOPS_AT_ONCE", 4); ++i) {
    at_once.emplace_back([&] {
      for (auto mine = next++; mine < stops.size(); mine = next++) ends[mine] = perform(stops[mine]);
    });
  }
  for (auto& each : at_once) each.join();

  std::vector<std::int64_t> times;
  for (const auto& end : ends) {
    if (end.wrong) ADD_FAILURE() << "seed " << seed << ": " << *end.wrong;
    if (end.hit) times.push_back(end.until_end.count());
  }
  ASSERT_GE(times.size(), count * 3 / 4) << "seed " << seed << ": most should find the rank alive";
  std::sort(times.begin(), times.end());
  fmt::print("seed {}: {} stops, {} hit; the launcher ended after {} ms (median), {} ms (at most)\n", seed,
             count, times.size(), times[times.size() / 2], times.back());
}

}  // namespace
}  // namespace troupe::tests
