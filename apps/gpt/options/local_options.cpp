#include "apps/gpt/options/local_options.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::apps::gpt {
namespace {

using core::Errc;
using core::fail;
using core::Result;

struct Known {
  std::string_view name;
  std::vector<std::string_view> values = {};  ///< empty: any
};

/// An option that is not here is refused, so a new one is until --local honours it.
const std::vector<Known>& known_to_local() {
  static const std::vector<Known> known = {
      {"--local"},
      {"--evaluate-only"},
      {"--print-tokens"},
      {"--text"},
      {"--evaluation-text"},
      {"--preset"},
      {"--model"},
      {"--weights-from"},
      {"--key"},
      {"--ignore"},
      {"--export"},
      {"--export-dtype"},
      {"--layers"},
      {"--heads"},
      {"--width"},
      {"--feed-forward"},
      {"--context"},
      {"--norm"},
      {"--activation"},
      {"--untied"},
      {"--initial-deviation"},
      {"--batch"},
      {"--lanes"},
      {"--microbatches"},
      {"--steps"},
      {"--warmup"},
      {"--learning-rate"},
      {"--floor"},
      {"--optimizer", {"adamw"}},
      {"--weight-decay"},
      {"--beta2"},
      {"--loss-scale", {"none"}},
      {"--loss-average"},
      {"--clip-norm"},
      {"--seed"},
      {"--evaluate-every"},
      {"--evaluation-batches"},
      {"--sample-bytes"},
      {"--prompt"},
      {"--temperature"},
      {"--top-k"},
      {"--experts"},
      {"--experts-per-token"},
      {"--expert-feed-forward"},
      {"--balance"},
      {"--bias-rate", {"0"}},
      {"--z-loss"},
      {"--capacity-factor"},
      {"--expert-parallel", {"1"}},
      {"--expert-tensor-parallel", {"0", "1"}},
      {"--pipeline-parallel", {"1"}},
      {"--tensor-parallel", {"1"}},
      {"--tensor-slices", {"1"}},
      {"--context-parallel", {"1"}},
      {"--device", {"host"}},
      {"--dtype", {"f32", "fp32"}},
      {"--recompute"},
  };
  return known;
}

/// Options that ask for something after training.
constexpr std::array<std::string_view, 3> kAfterTraining{"--export", "--prompt", "--sample-bytes"};

/// The option as the message names it; empty if --local does what it asks for.
std::string refusal_of(const GivenOption& given) {
  const auto& known = known_to_local();
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const Known& one) { return one.name == given.name; });
  if (found == known.end()) return given.name;
  const auto& values = found->values;
  if (values.empty() || std::find(values.begin(), values.end(), given.value) != values.end()) return {};
  return fmt::format("{} {}", given.name, core::quoted_excerpt(given.value));
}

}  // namespace

Result<void> check_local_options(const std::vector<GivenOption>& given, bool only_evaluates) {
  std::vector<std::string> ignored;
  for (const GivenOption& option : given) {
    auto refusal = refusal_of(option);
    if (!refusal.empty()) ignored.push_back(std::move(refusal));
  }
  if (!ignored.empty()) {
    return fail(Errc::invalid_argument,
                "--local is a plain loop in one process, on the host, in f32 and with adamw, and cannot do "
                "what {} asks for; leave out --local, or {}",
                fmt::join(ignored, ", "), ignored.size() == 1 ? "this option" : "these options");
  }
  if (!only_evaluates) return {};
  for (const GivenOption& option : given) {
    const bool asks_for_nothing = option.name == "--sample-bytes" && option.value == "0";
    const bool is_later =
        std::find(kAfterTraining.begin(), kAfterTraining.end(), option.name) != kAfterTraining.end();
    if (!is_later || asks_for_nothing) continue;
    return fail(Errc::invalid_argument,
                "--evaluate-only prints the perplexity and ends, found {}; leave one of the two out",
                option.name);
  }
  return {};
}

}  // namespace troupe::apps::gpt
