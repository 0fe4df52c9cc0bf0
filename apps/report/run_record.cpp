#include "apps/report/run_record.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/report/json_codec.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

using core::Errc;
using core::fail;
using core::Result;

namespace {

/// Sampled bytes need not be UTF-8; invalid ones become U+FFFD.
std::string text_of(const nlohmann::json& line) {
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Removes the partial line that a crash may have left at the end, so that the next line begins properly.
void drop_torn_line(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  std::uintmax_t whole_bytes = 0;
  while (std::getline(file, line) && !file.eof()) whole_bytes += line.size() + 1;
  std::error_code ignored;
  if (file.is_open()) std::filesystem::resize_file(path, whole_bytes, ignored);
}

}  // namespace

Result<std::filesystem::path> set_record_aside(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::filesystem::path();
  std::filesystem::path aside;
  for (int number = 1; aside.empty() || std::filesystem::exists(aside, error); ++number) {
    aside = path.parent_path() / path.stem();
    aside += "." + std::to_string(number) + path.extension().string();
  }
  std::filesystem::rename(path, aside, error);
  if (error) {
    return fail(Errc::io, "cannot rename the record of an earlier run, {}, to {}: {}; choose another folder",
                path.string(), aside.string(), error.message());
  }
  return aside;
}

Result<RunWriter> RunWriter::open(const std::filesystem::path& path, const RunDescription& description,
                                  bool append) {
  std::error_code ignored;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), ignored);
  if (append) drop_torn_line(path);
  std::FILE* file = std::fopen(path.c_str(), append ? "ae" : "we");
  if (file == nullptr) {
    return fail(Errc::io, "cannot write the run's record {}: {}; choose a folder that can be written",
                path.string(), std::strerror(errno));
  }
  RunWriter writer(path, file);
  std::fseek(file, 0, SEEK_END);
  if (std::ftell(file) == 0) TRY(writer.write(description));
  return writer;
}

Result<void> RunWriter::write_line(std::string line) {
  line += '\n';
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() || std::fflush(file_.get()) != 0) {
    return fail(Errc::io, "cannot write the run's record {}: {}", path_.string(), std::strerror(errno));
  }
  return {};
}

Result<void> RunWriter::write(const RunDescription& description) {
  return write_line(text_of(to_json_line(description)));
}
Result<void> RunWriter::write(const StepRecord& step) {
  return write_line(text_of(to_json_line(step)));
}
Result<void> RunWriter::write(const RunEvent& event) {
  return write_line(text_of(to_json_line(event)));
}
Result<void> RunWriter::write(const RunSample& sample) {
  return write_line(text_of(to_json_line(sample)));
}
Result<void> RunWriter::write(const ExpertLoadRecord& load) {
  return write_line(text_of(to_json_line(load)));
}
Result<void> RunWriter::write(const RunPipeline& pipeline) {
  return write_line(text_of(to_json_line(pipeline)));
}
Result<void> RunWriter::write(const RunTraffic& traffic) {
  return write_line(text_of(to_json_line(traffic)));
}

double seconds_since_start(const RunRecord& record, double unix_seconds) {
  const double started = record.description.started_unix_seconds;
  double latest = started > 0 ? std::max(unix_seconds - started, 0.0) : 0;
  for (const StepRecord& step : record.steps) latest = std::max(latest, step.seconds_since_start);
  for (const RunEvent& event : record.events) latest = std::max(latest, event.seconds_since_start);
  return latest;
}

Result<RunRecord> read_run(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(Errc::not_found, "there is no run's record at {}", path.string());
  RunRecord record;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (file.eof()) break;  // no end of line: cut off by a crash
    try {
      add_json_line(record, nlohmann::json::parse(line));
    } catch (const nlohmann::json::exception& error) {
      return fail(Errc::corrupt, "{} line {}: expected one JSON object of a run, found: {}", path.string(),
                  number, error.what());
    }
  }
  return record;
}

}  // namespace troupe::apps
