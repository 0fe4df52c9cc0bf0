#include "apps/troupe/doctor/doctor_command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/command_line/json_text.hpp"
#include "apps/troupe/doctor/findings.hpp"

namespace troupe::apps {

namespace {

void print_table(const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    fmt::print("{:<7} {:<22} {}\n", name_of(finding.status), finding.name, finding.value);
    if (!finding.advice.empty()) fmt::print("{:<30} -> {}\n", "", finding.advice);
  }
}

void print_json(const std::vector<Finding>& findings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"name", finding.name},
                    {"status", name_of(finding.status)},
                    {"value", finding.value},
                    {"advice", finding.advice}});
  }
  fmt::print("{}", json_text(list));
}

}  // namespace

void add_doctor_command(CLI::App& troupe, int& exit_code) {
  CLI::App* doctor = troupe.add_subcommand("doctor", "Say what this build and this machine can do");
  const auto json = std::make_shared<bool>(false);  // owned by the callback
  doctor->add_flag("--json", *json, "As a list of {name, status, value, advice}");
  doctor->callback([json, &exit_code] {
    const std::vector<Finding> findings = examine();
    *json ? print_json(findings) : print_table(findings);
    const bool broken = std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
      return finding.status == Finding::Status::broken;
    });
    exit_code = broken ? 1 : 0;
  });
}

}  // namespace troupe::apps
