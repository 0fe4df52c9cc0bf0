#include "apps/report/html.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "apps/report/json_codec.hpp"
#include "apps/report/page.hpp"
#include "apps/report/summary.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

using nlohmann::json;

namespace {

/// Column by column: a tenth of the bytes of a list of objects.
json columns_of(const std::vector<StepRecord>& steps) {
  json columns = json::object();
  for (const StepRecord& step : steps) {
    json line = to_json_line(step);
    line.erase("type");
    for (const char* sometimes : {"evaluation_loss", "target_tokens"})
      if (!line.contains(sometimes)) line[sometimes] = nullptr;
    for (auto& [key, value] : line.items()) columns[key].push_back(value);
  }
  return columns;
}

json page_data(const RunRecord& record) {
  json data = {{"run", to_json_line(record.description)}, {"steps", columns_of(record.steps)}};
  data["summary"] = summary_rows(summarize(record));
  data["events"] = json::array();
  for (const RunEvent& event : record.events) data["events"].push_back(to_json_line(event));
  data["pipeline"] = record.pipeline ? to_json_line(*record.pipeline) : json(nullptr);
  data["traffic"] = record.traffic ? to_json_line(*record.traffic) : json(nullptr);
  data["samples"] = json::array();
  for (const RunSample& sample : record.samples) data["samples"].push_back(to_json_line(sample));
  data["expert_loads"] = json::array();
  for (const ExpertLoadRecord& load : record.expert_loads) data["expert_loads"].push_back(to_json_line(load));
  return data;
}

/// Inside a script element only "</script" and "<!--" have a meaning; JSON may write '<' as an escape.
std::string for_script(std::string_view data) {
  std::string text;
  for (char c : data) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

void replace(std::string& page, std::string_view mark, std::string_view text) {
  const auto at = page.find(mark);
  if (at != std::string::npos) page.replace(at, mark.size(), text);
}

}  // namespace

std::string fill_page(std::string_view html, std::string_view script, std::string_view data) {
  std::string page(html);
  replace(page, "/*style*/", page::kStyle);
  replace(page, "/*plots*/", page::kPlots);
  replace(page, "/*script*/", script);
  replace(page, "\"data\"", for_script(data));
  return page;
}

std::string render_html(const RunRecord& record) {
  return fill_page(page::kHtml, page::kReport,
                   page_data(record).dump(-1, ' ', false, json::error_handler_t::replace));
}

core::Result<void> write_report(const std::filesystem::path& record_path,
                                const std::filesystem::path& page_path) {
  const RunRecord record = TRY(read_run(record_path));
  std::ofstream file(page_path, std::ios::binary);
  file << render_html(record);
  file.close();
  if (!file) {
    return core::fail(core::Errc::io, "cannot write the report {}: {}", page_path.string(),
                      std::strerror(errno));
  }
  return {};
}

}  // namespace troupe::apps
