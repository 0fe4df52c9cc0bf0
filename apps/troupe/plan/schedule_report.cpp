#include "apps/troupe/plan/schedule_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/command_line/json_text.hpp"
#include "apps/report/page.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"
#include "core/schedule/check_schedule.hpp"

namespace troupe::apps {

namespace {

using core::Result;
using core::TimedPass;
using Json = nlohmann::ordered_json;

/// Beyond this a line has no reader, and a page no browser that likes it.
constexpr std::int64_t kMostDrawn = 200'000;

struct Planned {
  core::ScheduleOptions options;
  core::PassDurations durations;
  core::ScheduleFacts facts;
  core::ScheduleRun run;
  std::optional<double> theory;
};

Result<Planned> plan(const ScheduleArguments& arguments) {
  Planned planned;
  planned.options = {TRY(core::schedule_kind_from_name(arguments.kind)), arguments.stages, arguments.chunks,
                     arguments.microbatches};
  if (arguments.weight_ms > arguments.backward_ms)
    return core::fail(core::Errc::invalid_argument,
                      "--weight-ms is a part of --backward-ms and cannot be more, found {} of {}",
                      arguments.weight_ms, arguments.backward_ms);
  planned.durations = {arguments.forward_ms, arguments.backward_ms - arguments.weight_ms, arguments.weight_ms,
                       arguments.transfer_ms};
  const auto schedule = TRY(core::plan_schedule(planned.options));
  const auto drawn = std::int64_t{3} * arguments.stages * arguments.chunks * arguments.microbatches;
  if (drawn > kMostDrawn)
    return core::fail(core::Errc::invalid_argument,
                      "{} stages of {} chunks with {} microbatches are {} passes; "
                      "at most {} are drawn",
                      arguments.stages, arguments.chunks, arguments.microbatches, drawn, kMostDrawn);
  planned.facts = TRY(core::check_schedule(schedule));
  // How long a stage waits to send depends on whatever moves the messages: here nobody does.
  planned.run = core::run_schedule(schedule, planned.durations, std::numeric_limits<int>::max());
  planned.theory = core::theoretical_bubble_share(planned.options, planned.durations);
  return planned;
}

std::string summary_of(const Planned& planned) {
  const auto& [kind, stages, chunks, microbatches] = planned.options;
  const auto theory = planned.theory ? fmt::format(" ({:.2f} % in theory)", 100 * *planned.theory) : "";
  return fmt::format("{}, {} stages of {} chunk{}, {} microbatches: {:.3f} ms, {:.2f} % bubble{}",
                     core::name_of(kind), stages, chunks, chunks == 1 ? "" : "s", microbatches,
                     planned.run.total(), 100 * planned.run.bubble_share(), theory);
}

std::string json_of(const Planned& planned) {
  Json json{{"kind", core::name_of(planned.options.kind)},
            {"total_ms", planned.run.total()},
            {"bubble_share", planned.run.bubble_share()},
            {"theoretical_bubble_share", planned.theory ? Json(*planned.theory) : Json()},
            {"peak_activations", planned.facts.peak_activations},
            {"stages", Json::array()}};
  for (const auto& stage : planned.run.stages) {
    auto passes = Json::array();
    for (const TimedPass& pass : stage) {
      passes.push_back({{"kind", core::name_of(pass.pass.kind)},
                        {"microbatch", pass.pass.microbatch},
                        {"chunk", pass.pass.chunk},
                        {"start_ms", pass.start},
                        {"end_ms", pass.end}});
    }
    json["stages"].push_back(std::move(passes));
  }
  return json_text(json, -1);
}

/// Time as columns: the shortest pass is one cell, and a cell holds any name.
class Drawing {
 public:
  explicit Drawing(const Planned& planned) : chunks_(planned.options.chunks) {
    for (const auto& stage : planned.run.stages) {
      for (const TimedPass& pass : stage) {
        unit_ = std::min(unit_, pass.end - pass.start);
        width_ = std::max(width_, name_of(pass).size() + 1);
      }
    }
  }

  std::string line(const std::vector<TimedPass>& stage) const {
    std::string line;
    std::size_t column = 0;
    for (const TimedPass& pass : stage) {
      for (; column < cells(pass.start); ++column) line += fmt::format("{:<{}}", ".", width_);
      const std::size_t end = std::max(cells(pass.end), column + 1);
      line += fmt::format("{:-<{}} ", name_of(pass), (end - column) * width_ - 1);
      column = end;
    }
    return line.substr(0, line.find_last_not_of(' ') + 1);
  }

 private:
  std::string name_of(const TimedPass& pass) const { return core::short_name(pass.pass, chunks_); }
  std::size_t cells(double time) const {
    return unit_ > 0 ? static_cast<std::size_t>(std::min(std::round(time / unit_), 1e5)) : 0;
  }

  int chunks_;
  double unit_ = std::numeric_limits<double>::max();
  std::size_t width_ = 0;
};

const char* colour_of(core::PassKind kind) {
  switch (kind) {
    case core::PassKind::forward:
      return "var(--blue)";
    case core::PassKind::backward_weight:
      return "var(--violet)";
    case core::PassKind::backward:
    case core::PassKind::backward_input:
      break;
  }
  return "var(--green)";
}

std::string picture_of(const Planned& planned) {
  constexpr double kWidth = 1160, kRow = 34, kLeft = 60;
  const double total = planned.run.total(), scale = total > 0 ? (kWidth - kLeft) / total : 0;
  std::string svg;
  for (std::size_t stage = 0; stage < planned.run.stages.size(); ++stage) {
    const double y = static_cast<double>(stage) * kRow;
    svg += fmt::format("<text x=\"0\" y=\"{}\">stage {}</text>\n", y + 19, stage);
    for (const TimedPass& pass : planned.run.stages[stage]) {
      const double x = kLeft + pass.start * scale, width = (pass.end - pass.start) * scale;
      const auto name = core::short_name(pass.pass, planned.options.chunks);
      // Later chunks are paler.
      const double strength = 1 - 0.6 * pass.pass.chunk / planned.options.chunks;
      svg += fmt::format(
          "<g><title>{}: {:.3f} to {:.3f} ms</title><rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" "
          "height=\"28\" "
          "rx=\"2\" fill=\"{}\" fill-opacity=\"{:.2f}\" stroke=\"var(--card)\"/>",
          name, pass.start, pass.end, x, y, width, colour_of(pass.pass.kind), strength);
      if (width > 7.0 * static_cast<double>(name.size()))
        svg += fmt::format(
            "<text x=\"{:.2f}\" y=\"{}\" text-anchor=\"middle\" style=\"fill: var(--ink)\">{}</text>",
            x + width / 2, y + 18, name);
      svg += "</g>\n";
    }
  }
  return fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\">\n{}</svg>\n", kWidth,
                     static_cast<double>(planned.run.stages.size()) * kRow, svg);
}

std::string page_of(const Planned& planned) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>Pipeline schedule</title>\n"
      "<style>{}</style>\n</head>\n<body>\n<main>\n<header><div><h1>Pipeline schedule</h1><p>{}</p></div>"
      "</header>\n<section class=\"card\">\n{}</section>\n"
      "<footer>F forward, B backward (of inputs, where W follows), W backward of weights; then the "
      "microbatch "
      "and the chunk. At most {} activations are kept per stage.</footer>\n</main>\n</body>\n</html>\n",
      page::kStyle, summary_of(planned), picture_of(planned),
      fmt::join(planned.facts.peak_activations, ", "));
}

}  // namespace

Result<std::string> schedule_page(const ScheduleArguments& arguments) {
  return page_of(TRY(plan(arguments)));
}

Result<std::string> report_schedule(const ScheduleArguments& arguments) {
  const auto planned = TRY(plan(arguments));
  if (!arguments.html.empty()) {
    std::ofstream file(arguments.html, std::ios::binary);
    file << page_of(planned);
    file.close();
    if (!file)
      return core::fail(core::Errc::io, "cannot write the page of --html {}",
                        core::quoted_excerpt(arguments.html));
  }
  if (arguments.json) return json_of(planned);
  const Drawing drawing(planned);
  std::string text = summary_of(planned) + "\n";
  for (std::size_t stage = 0; stage < planned.run.stages.size(); ++stage) {
    text += fmt::format("stage {:<3} keeps {:<3} {}\n", stage, planned.facts.peak_activations[stage],
                        drawing.line(planned.run.stages[stage]));
  }
  return text;
}

}  // namespace troupe::apps
