#include "apps/gpt/options/settings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>

#include "apps/gpt/options/option_table.hpp"
#include "apps/gpt/text/data.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::Result;
using core::Value;

namespace {

constexpr std::string_view kRanks = "ranks";

std::string text_of(const std::string& value) {
  return value;
}
std::string text_of(const char* value) {
  return value;
}
std::string text_of(std::string_view value) {
  return std::string(value);
}
std::string text_of(bool value) {
  return value ? "on" : "off";
}
template <class Number>
requires std::is_arithmetic_v<Number> std::string text_of(Number value) {
  return fmt::format("{}", value);
}
template <class Optional>
std::string text_of(const std::optional<Optional>& value) {
  return value ? text_of(*value) : "default";
}

/// Collects settings of one kind of ChangeWeight at a time.
class Collector {
 public:
  Collector& as(ChangeWeight change) {
    change_ = change;
    return *this;
  }
  template <class T>
  Collector& add(std::string name, const T& value) {
    settings_.push_back({std::move(name), text_of(value), change_});
    return *this;
  }
  Settings take() { return std::move(settings_); }

 private:
  ChangeWeight change_ = ChangeWeight::none;
  Settings settings_;
};

/// A model's own tokenizer, whatever its folder is called.
std::string tokenizer_of(const std::string& directory) {
  for (const auto* name : {"tokenizer.json", "tokenizer.model"}) {
    std::ifstream file(directory + "/" + name, std::ios::binary);
    if (directory.empty() || !file) continue;
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    return fmt::format("{} {:016x}", name, core::hash64(bytes));
  }
  return "bytes";
}

std::string rotary_of(const ModelConfig& model) {
  const auto& scaling = model.rope_scaling;
  auto text =
      fmt::format("base {}, scaling {} {} {} {} {}", model.rope_base, static_cast<int>(scaling.kind),
                  scaling.factor, scaling.low_frequency, scaling.high_frequency, scaling.original_context);
  if (scaling.kind != RotaryScaling::Kind::yarn && scaling.kind != RotaryScaling::Kind::longrope) return text;
  return text + fmt::format(", {} {} {} {}, factors {} {}", scaling.fast_turns, scaling.slow_turns,
                            scaling.whole_pairs, scaling.attention_factor,
                            fmt::join(scaling.short_factors, " "), fmt::join(scaling.long_factors, " "));
}

void add_model(Collector& all, const Options& options, const ModelConfig& model) {
  const auto& experts = model.experts;
  all.as(ChangeWeight::model)
      .add("--layers", model.layers)
      .add("--width", model.width)
      .add("--heads", model.heads)
      .add("heads of keys and values", model.key_heads())
      .add("size of a head", model.head_size())
      .add("--feed-forward", model.feed_forward)
      .add("--norm", model.norm == Norm::rms ? "rms" : "layer")
      .add("norm epsilon", model.norm_epsilon)
      .add("--activation", model.activation == Activation::swiglu ? "swiglu" : "gelu")
      .add("--untied", !model.tied_embeddings)
      .add("vocabulary", model.vocabulary)
      .add("rotary angles", rotary_of(model))
      .add("biases", fmt::format("{} {}", model.query_key_value_bias, model.attention_output_bias))
      .add("norms of queries and keys", model.query_key_norm)
      .add("--experts", experts.count);
  if (experts.count > 0) {
    all.add("--experts-per-token", experts.choices)
        .add("--expert-feed-forward", experts.feed_forward)
        .add("shared expert", fmt::format("{} {}", experts.shared_feed_forward, experts.shared_gate))
        .add("--bias-rate: biases of routers", experts.bias_rate > 0);
  }
  all.as(ChangeWeight::curve)
      .add("tokenizer", tokenizer_of(options.model))
      .add("--context", model.context)
      .add("--balance", experts.balance)
      .add("--bias-rate", experts.bias_rate)
      .add("--z-loss", experts.z_loss)
      .add("--capacity-factor", experts.capacity_factor);
}

/// The settings of a checkpoint that was saved before checkpoints kept all of them.
std::vector<std::pair<std::string, std::string>> old_settings(const Value& common) {
  const std::pair<const char*, const char*> known[] = {{"seed", "--seed"},
                                                       {"lanes", "--lanes"},
                                                       {"microbatches", "--microbatches"},
                                                       {"sequences", "--batch"},
                                                       {"context", "--context"}};
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& [key, name] : known) {
    const auto* value = common.find(key);
    if (value != nullptr && value->as_int()) found.emplace_back(name, std::to_string(*value->as_int()));
  }
  return found;
}

std::vector<std::pair<std::string, std::string>> saved_settings(const Value& common) {
  const auto* settings = common.find("settings");
  if (settings == nullptr || settings->as_map() == nullptr) return old_settings(common);
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& [key, value] : settings->as_map()->entries()) {
    const auto* name = std::get_if<std::string>(&key);
    if (name != nullptr && value.as_string() != nullptr) found.emplace_back(*name, *value.as_string());
  }
  return found;
}

std::string joined(const std::vector<std::string>& texts) {
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

Settings settings_of(const Options& options, const RunOptions& run) {
  Collector all;
  add_model(all, options, run.trainer.model);
  const TrainerOptions& trainer = run.trainer;
  const bool has_path = run.resume != "auto" && run.resume != "never";
  all.as(ChangeWeight::curve).add("--dtype", core::name_of(trainer.arithmetic.dtype));
  all.as(ChangeWeight::told)
      .add("--tensor-slices", slices_of(trainer.session.training, trainer.tensor))
      .add("--context-pieces", trainer.session.training.pieces_of_lane())
      .add("--device", run.world.device.substr(0, run.world.device.find(':')));
  all.as(ChangeWeight::none)
      .add("--initial-deviation", trainer.model.initial_deviation)
      .add("--resume", has_path ? std::string("a path") : run.resume);
  Options given = options;
  for (const OptionRow& row : option_table(given)) {
    if (row.change) all.as(*row.change).add(row.name, row.value.shown());
  }
  return all.take();
}

void add_settings(Settings& settings, const Corpus& corpus, core::WorldSize world) {
  const auto named = [](std::uint64_t hash) { return fmt::format("a text with the hash {:016x}", hash); };
  settings.push_back({"--text", named(corpus.hash()), ChangeWeight::curve});
  const auto evaluated = corpus.evaluation_hash();
  settings.push_back({"--evaluation-text", evaluated ? named(*evaluated) : "none", ChangeWeight::told});
  settings.push_back({std::string(kRanks), std::to_string(world.value), ChangeWeight::told});
}

std::vector<std::pair<std::string, std::string>> compared(const Settings& settings) {
  std::vector<std::pair<std::string, std::string>> all;
  for (const auto& [name, value, change] : settings) {
    if (name != kRanks) all.emplace_back(name, value);
  }
  return all;
}

Value kept(const Settings& settings) {
  Value::Map map;
  for (const auto& [name, value, change] : settings) {
    if (change != ChangeWeight::none) map.set(name, value);
  }
  return Value(std::move(map));
}

Result<std::string> compare_with_checkpoint(const Value& common, const Settings& settings, bool force,
                                            bool weights_only) {
  std::vector<std::string> of_model, of_curve, told;
  const auto saved = saved_settings(common);
  for (const auto& [name, value, change] : settings) {
    const auto found =
        std::find_if(saved.begin(), saved.end(), [&](const auto& one) { return one.first == name; });
    if (found == saved.end() || found->second == value) continue;
    const auto text = fmt::format("{} {} (it was saved with {})", name, value, found->second);
    if (change == ChangeWeight::model) of_model.push_back(text);
    if (change == ChangeWeight::curve) of_curve.push_back(text);
    if (change == ChangeWeight::told) told.push_back(text);
  }
  if (!of_model.empty()) {
    return core::fail(
        Errc::mismatch,
        "the checkpoint has another model than this run: {}; give the options it was saved with, "
        "or --resume never and an empty directory to begin anew",
        joined(of_model));
  }
  if (weights_only) return std::string();
  if (!of_curve.empty() && !force) {
    return core::fail(
        Errc::mismatch,
        "this run would not go on as the checkpoint's began: {}; give the options it was saved with, "
        "or --force-resume to go on all the same",
        joined(of_curve));
  }
  told.insert(told.begin(), of_curve.begin(), of_curve.end());
  if (common.find("settings") == nullptr) {
    return "the checkpoint does not say with which options it was saved; give those of its run" +
           (told.empty() ? std::string() : ". Goes on with " + joined(told));
  }
  return told.empty() ? std::string() : "goes on with " + joined(told);
}

}  // namespace troupe::apps::gpt
