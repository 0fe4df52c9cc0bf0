#include "apps/report/json_codec.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::apps {

using nlohmann::json;

namespace {

/// JSON has no NaN: a number that is not finite is written as null, and read back as NaN.
json number(double value) {
  return std::isfinite(value) ? json(value) : json(nullptr);
}

double number(const json& line, const char* key) {
  const json& value = line.at(key);
  return value.is_null() ? std::nan("") : value.get<double>();
}

StepRecord step_of(const json& line) {
  StepRecord step;
  step.step = line.at("step").get<std::int64_t>();
  step.seconds_since_start = number(line, "seconds_since_start");
  step.loss = number(line, "loss");
  if (line.contains("target_tokens")) step.target_tokens = line.at("target_tokens").get<std::int64_t>();
  if (line.contains("evaluation_loss")) step.evaluation_loss = number(line, "evaluation_loss");
  step.tokens_per_second = number(line, "tokens_per_second");
  if (line.contains("model_flop_utilisation")) {
    step.model_flop_utilisation = number(line, "model_flop_utilisation");
  }
  step.step_seconds = number(line, "step_seconds");
  step.compute_seconds = number(line, "compute_seconds");
  step.communication_seconds = number(line, "communication_seconds");
  step.exposed_communication_seconds = number(line, "exposed_communication_seconds");
  step.optimizer_seconds = number(line, "optimizer_seconds");
  step.other_wait_seconds = number(line, "other_wait_seconds");
  step.gradient_norm = number(line, "gradient_norm");
  step.learning_rate = number(line, "learning_rate");
  step.committed = line.at("committed").get<bool>();
  return step;
}

ExpertLoadRecord expert_load_of(const json& line) {
  ExpertLoadRecord load{.step = line.at("step").get<std::int64_t>(), .layers = {}};
  for (const json& layer : line.at("layers")) {
    load.layers.push_back({.layer = layer.at("layer").get<std::int64_t>(),
                           .chosen = layer.at("chosen").get<std::vector<std::int64_t>>(),
                           .dropped = layer.at("dropped").get<std::vector<std::int64_t>>()});
  }
  return load;
}

/// A run that went back repeats steps: their earlier records are no longer part of it.
template <class Record>
void put_in_place(std::vector<Record>& records, Record record) {
  const auto repeated =
      std::lower_bound(records.begin(), records.end(), record.step,
                       [](const Record& known, std::int64_t at) { return known.step < at; });
  records.erase(repeated, records.end());
  records.push_back(std::move(record));
}

}  // namespace

json to_json_line(const RunDescription& description) {
  json configuration = json::array();
  for (const auto& [key, value] : description.configuration) configuration.push_back({key, value});
  return {{"type", "run"},
          {"name", description.name},
          {"started_at", description.started_at},
          {"ranks", description.ranks},
          {"steps", description.steps},
          {"configuration", configuration},
          {"started_unix_seconds", description.started_unix_seconds}};
}

json to_json_line(const StepRecord& step) {
  json line = {{"type", "step"},
               {"step", step.step},
               {"seconds_since_start", number(step.seconds_since_start)},
               {"loss", number(step.loss)},
               {"tokens_per_second", number(step.tokens_per_second)},
               {"step_seconds", number(step.step_seconds)},
               {"compute_seconds", number(step.compute_seconds)},
               {"communication_seconds", number(step.communication_seconds)},
               {"exposed_communication_seconds", number(step.exposed_communication_seconds)},
               {"optimizer_seconds", number(step.optimizer_seconds)},
               {"other_wait_seconds", number(step.other_wait_seconds)},
               {"gradient_norm", number(step.gradient_norm)},
               {"learning_rate", number(step.learning_rate)},
               {"committed", step.committed}};
  if (step.model_flop_utilisation) line["model_flop_utilisation"] = number(*step.model_flop_utilisation);
  if (step.target_tokens) line["target_tokens"] = *step.target_tokens;
  if (step.evaluation_loss) line["evaluation_loss"] = number(*step.evaluation_loss);
  return line;
}

json to_json_line(const RunEvent& event) {
  return {{"type", "event"},
          {"step", event.step},
          {"seconds_since_start", number(event.seconds_since_start)},
          {"kind", event.kind},
          {"text", event.text}};
}

json to_json_line(const RunSample& sample) {
  return {{"type", "sample"}, {"step", sample.step}, {"prompt", sample.prompt}, {"text", sample.text}};
}

json to_json_line(const ExpertLoadRecord& load) {
  json layers = json::array();
  for (const auto& layer : load.layers) {
    layers.push_back({{"layer", layer.layer}, {"chosen", layer.chosen}, {"dropped", layer.dropped}});
  }
  return {{"type", "expert_load"}, {"step", load.step}, {"layers", std::move(layers)}};
}

json to_json_line(const RunPipeline& pipeline) {
  json stages = json::array();
  for (const auto& stage : pipeline.stages) {
    json passes = json::array();
    for (const auto& pass : stage) passes.push_back({pass.name, pass.start_ms, pass.end_ms});
    stages.push_back(std::move(passes));
  }
  return {{"type", "pipeline"},
          {"step", pipeline.step},
          {"schedule", pipeline.schedule},
          {"bubble_share", pipeline.bubble_share},
          {"theoretical_bubble_share", pipeline.theory ? json(*pipeline.theory) : json(nullptr)},
          {"stages", std::move(stages)}};
}

json to_json_line(const RunTraffic& traffic) {
  json axes = json::array();
  for (const auto& axis : traffic.axes)
    axes.push_back({{"axis", axis.name}, {"launches", axis.launches}, {"bytes", axis.bytes}});
  return {{"type", "traffic"}, {"step", traffic.step}, {"axes", std::move(axes)}};
}

namespace {

RunTraffic traffic_of(const json& line) {
  RunTraffic traffic{.step = line.at("step").get<std::int64_t>(), .axes = {}};
  for (const auto& axis : line.at("axes")) {
    traffic.axes.push_back({.name = axis.at("axis").get<std::string>(),
                            .launches = axis.at("launches").get<std::int64_t>(),
                            .bytes = axis.at("bytes").get<std::int64_t>()});
  }
  return traffic;
}

RunPipeline pipeline_of(const json& line) {
  RunPipeline pipeline{.step = line.at("step").get<std::int64_t>(),
                       .schedule = line.at("schedule").get<std::string>(),
                       .bubble_share = line.at("bubble_share").get<double>(),
                       .theory = {},
                       .stages = {}};
  const auto& theory = line.at("theoretical_bubble_share");
  if (!theory.is_null()) pipeline.theory = theory.get<double>();
  for (const auto& stage : line.at("stages")) {
    auto& passes = pipeline.stages.emplace_back();
    for (const auto& pass : stage)
      passes.push_back({pass.at(0).get<std::string>(), pass.at(1).get<double>(), pass.at(2).get<double>()});
  }
  return pipeline;
}

}  // namespace

void add_json_line(RunRecord& record, const json& line) {
  const auto type = line.at("type").get<std::string>();
  if (type == "run") {
    record.description = {
        .name = line.at("name").get<std::string>(),
        .started_at = line.at("started_at").get<std::string>(),
        .ranks = line.at("ranks").get<int>(),
        .steps = line.at("steps").get<std::int64_t>(),
        .configuration = line.at("configuration").get<std::vector<std::pair<std::string, std::string>>>(),
        .started_unix_seconds = line.value("started_unix_seconds", 0.0)};
  } else if (type == "step") {
    put_in_place(record.steps, step_of(line));
  } else if (type == "expert_load") {
    put_in_place(record.expert_loads, expert_load_of(line));
  } else if (type == "event") {
    record.events.push_back({.step = line.at("step").get<std::int64_t>(),
                             .seconds_since_start = number(line, "seconds_since_start"),
                             .kind = line.at("kind").get<std::string>(),
                             .text = line.at("text").get<std::string>()});
  } else if (type == "pipeline") {
    record.pipeline = pipeline_of(line);
  } else if (type == "traffic") {
    record.traffic = traffic_of(line);
  } else if (type == "sample") {
    record.samples.push_back({.step = line.at("step").get<std::int64_t>(),
                              .prompt = line.at("prompt").get<std::string>(),
                              .text = line.at("text").get<std::string>()});
  }
}

}  // namespace troupe::apps
