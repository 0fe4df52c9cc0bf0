#pragma once

#include <nlohmann/json.hpp>

#include "apps/report/run_record.hpp"

namespace troupe::apps {

/// The objects of a record's lines, each with its "type". Keys are the member names.
nlohmann::json to_json_line(const RunDescription& description);
nlohmann::json to_json_line(const StepRecord& step);
nlohmann::json to_json_line(const RunEvent& event);
nlohmann::json to_json_line(const RunSample& sample);
nlohmann::json to_json_line(const ExpertLoadRecord& load);
nlohmann::json to_json_line(const RunPipeline& pipeline);
nlohmann::json to_json_line(const RunTraffic& traffic);

/// Adds a line's object to the record. Throws nlohmann's exceptions for what is missing or has a wrong type.
void add_json_line(RunRecord& record, const nlohmann::json& line);

}  // namespace troupe::apps
