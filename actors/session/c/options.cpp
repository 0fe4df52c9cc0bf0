#include "actors/session/c/options.hpp"

#include <array>
#include <chrono>
#include <limits>

#include "core/errors.hpp"
#include "core/number.hpp"
#include "core/optimizer/optimizer.hpp"

namespace troupe::actors {

namespace {

using core::Result;

constexpr auto kMost = std::numeric_limits<std::int64_t>::max();

struct Option {
  std::string_view name;
  std::string_view meaning;
  Result<void> (*set)(troupe_options&, std::string_view value);
};

Result<void> set_number(std::optional<double>& number, std::string_view value, core::Bounds<double> bounds) {
  number = TRY(core::parse_number<double>(value, bounds));
  return {};
}

template <class Number>
Result<void> set_number(Number& number, std::string_view value, core::Bounds<Number> bounds) {
  number = TRY(core::parse_number<Number>(value, bounds));
  return {};
}

Result<void> set_flag(bool& flag, std::string_view value) {
  if (value != "true" && value != "false")
    return core::fail(core::Errc::invalid_argument, "expected true or false, found {}",
                      core::quoted_excerpt(value));
  flag = value == "true";
  return {};
}

template <class Choice, std::size_t count>
Result<void> choose(Choice& choice, std::string_view value,
                    const std::array<std::pair<std::string_view, Choice>, count>& choices) {
  std::string names;
  for (const auto& [name, chosen] : choices) {
    if (name == value) {
      choice = chosen;
      return {};
    }
    names += names.empty() ? std::string(name) : ", " + std::string(name);
  }
  return core::fail(core::Errc::invalid_argument, "expected one of {}, found {}", names,
                    core::quoted_excerpt(value));
}

Result<void> set_seconds(std::chrono::nanoseconds& time, std::string_view value) {
  const auto seconds = TRY(core::parse_number<double>(value, {0.001, 1e6}));
  time = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  return {};
}

Result<void> set_mebibytes(std::uint64_t& bytes, std::string_view value) {
  bytes = TRY(core::parse_number<std::uint64_t>(value, {1, std::uint64_t{1} << 30})) << 20;
  return {};
}

using O = troupe_options;
using V = std::string_view;

constexpr std::array kOptions{
    Option{"strategy", "ddp or zero1",
           [](O& o, V v) -> Result<void> {
             o.session.training.strategy = TRY(core::strategy_from_name(v));
             return {};
           }},
    Option{"numerics", "ordered (the same bits for any number of ranks) or fast",
           [](O& o, V v) -> Result<void> {
             o.session.training.numerics = TRY(core::numerics_from_name(v));
             return {};
           }},
    Option{"lanes", "logical data-parallel workers; 0: one per rank",
           [](O& o, V v) {
             return set_number(o.session.training.lanes, v, {0, 1 << 20});
           }},
    Option{"microbatches", "that a lane accumulates in a step",
           [](O& o, V v) {
             return set_number(o.session.training.microbatches, v, {1, 1 << 20});
           }},
    Option{"overlap", "whether collectives run under backward and forward: true or false",
           [](O& o, V v) { return set_flag(o.session.training.overlap, v); }},
    Option{"bucket-elements", "after which a bucket closes",
           [](O& o, V v) -> Result<void> {
             o.session.training.bucket_elements = TRY(core::parse_number<std::int64_t>(v, {1, kMost}));
             return {};
           }},
    Option{"average", "over lanes and microbatches, otherwise the sum: true or false",
           [](O& o, V v) { return set_flag(o.session.training.average, v); }},
    Option{"optimizer-instances", "replicas of the sharded optimizer",
           [](O& o, V v) {
             return set_number(o.session.training.optimizer_instances, v, {1, 1 << 20});
           }},
    Option{"unused-parameters", "refuse or zeros",
           [](O& o, V v) {
             using Unused = core::UnusedParameters;
             return choose(o.session.training.unused_parameters, v,
                           std::array{std::pair<V, Unused>{"refuse", Unused::refuse},
                                      std::pair<V, Unused>{"zeros", Unused::zeros}});
           }},
    Option{"clip-norm", "global L2 norm to clip gradients at; 0: none",
           [](O& o, V v) {
             return set_number(o.session.training.clip_norm, v, {0, 1e30});
           }},
    Option{"optimizer", "sgd, adam, adamw, lion or muon",
           [](O& o, V v) -> Result<void> {
             o.session.training.optimizer.kind = TRY(core::optimizer_from_name(v));
             return {};
           }},
    Option{"beta1", "of Adam and Lion",
           [](O& o, V v) {
             return set_number(o.session.training.optimizer.beta1, v, {0, 1});
           }},
    Option{"beta2", "of Adam and Lion",
           [](O& o, V v) {
             return set_number(o.session.training.optimizer.beta2, v, {0, 1});
           }},
    Option{"epsilon", "of Adam and Muon",
           [](O& o, V v) {
             return set_number(o.session.training.optimizer.epsilon, v, {0, 1});
           }},
    Option{"weight-decay", "of the optimizer",
           [](O& o, V v) {
             return set_number(o.session.training.optimizer.weight_decay, v, {0, 1e30});
           }},
    Option{"momentum", "of sgd and Muon",
           [](O& o, V v) {
             return set_number(o.session.training.optimizer.momentum, v, {0, 1});
           }},
    Option{"checkpoints", "directory; without it nothing can be saved",
           [](O& o, V v) -> Result<void> {
             o.world.checkpoint_directory = v;
             return {};
           }},
    Option{"keep-last", "checkpoints that stay; 0: all",
           [](O& o, V v) {
             return set_number(o.session.checkpoint.retention.keep_last, v, {0, 1 << 30});
           }},
    Option{"keep-every", "and those whose step is a multiple of this; 0: no others",
           [](O& o, V v) {
             return set_number(o.session.checkpoint.retention.keep_every, v, {std::int64_t{0}, kMost});
           }},
    Option{"staging-mebibytes", "of memory for what is copied and not yet written",
           [](O& o, V v) { return set_mebibytes(o.session.checkpoint.staging_bytes, v); }},
    Option{"device", "host, cuda or cuda:<index>",
           [](O& o, V v) -> Result<void> {
             o.world.device = v;
             return {};
           }},
    Option{"collectives", "automatic, shared_memory, gloo or nccl",
           [](O& o, V v) -> Result<void> {
             o.world.collectives = v;
             return {};
           }},
    Option{"join-seconds", "after which a job that has not formed ends",
           [](O& o, V v) { return set_seconds(o.session.join_deadline, v); }},
    Option{"step-seconds", "after which a collective counts as hung",
           [](O& o, V v) { return set_seconds(o.session.step_deadline, v); }},
};

}  // namespace

Result<void> set_option(troupe_options& options, std::string_view name, std::string_view value) {
  for (const Option& option : kOptions) {
    if (option.name != name) continue;
    if (auto set = option.set(options, value); !set)
      return core::fail(set.error().code, "{}: {}", name, set.error().message);
    return {};
  }
  return core::fail(core::Errc::invalid_argument,
                    "there is no option {}; troupe_option_names() lists them, for example lanes",
                    core::quoted_excerpt(name));
}

const std::string& option_names() {
  static const std::string names = [] {
    std::string text;
    for (const Option& option : kOptions) text += fmt::format("{}: {}\n", option.name, option.meaning);
    return text;
  }();
  return names;
}

}  // namespace troupe::actors
