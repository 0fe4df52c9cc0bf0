#include "apps/troupe/plan/layout_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <nlohmann/json.hpp>

#include "apps/command_line/json_text.hpp"
#include "core/errors.hpp"
#include "core/layout/row_layout.hpp"

namespace troupe::apps {

namespace {

using Json = nlohmann::ordered_json;

std::string json_of(const core::BufferLayout& layout) {
  Json json{{"elements", layout.elements}, {"parameters", Json::array()}, {"buckets", Json::array()}};
  for (const auto& place : layout.parameters) {
    json["parameters"].push_back({{"start", place.start}, {"end", place.end}, {"bucket", place.bucket}});
  }
  for (const auto& bucket : layout.buckets) {
    json["buckets"].push_back({{"start", bucket.start}, {"end", bucket.end}, {"unpadded", bucket.unpadded}});
  }
  return json_text(json, -1);
}

std::string table_of(const core::BufferLayout& layout) {
  std::string text = fmt::format("{:>9} {:>14} {:>14} {:>7}\n", "parameter", "start", "end", "bucket");
  auto out = std::back_inserter(text);
  for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
    const auto& place = layout.parameters[i];
    fmt::format_to(out, "{:>9} {:>14} {:>14} {:>7}\n", i, place.start, place.end, place.bucket);
  }
  fmt::format_to(out, "\n{:>9} {:>14} {:>14} {:>14} {:>9}\n", "bucket", "start", "end", "unpadded",
                 "padding");
  for (std::size_t i = 0; i < layout.buckets.size(); ++i) {
    const auto& bucket = layout.buckets[i];
    fmt::format_to(out, "{:>9} {:>14} {:>14} {:>14} {:>9}\n", i, bucket.start, bucket.end, bucket.unpadded,
                   bucket.size() - bucket.unpadded);
  }
  fmt::format_to(out, "\n{} elements\n", layout.elements);
  return text;
}

std::vector<std::int64_t> rows_of(const core::RowLayout& layout, int shard) {
  std::vector<std::int64_t> rows;
  for (std::size_t tensor = 0; tensor < layout.offsets.size(); ++tensor) {
    rows.push_back(core::local_rows(layout, static_cast<int>(tensor), shard).size());
  }
  return rows;
}

std::string json_of(const core::RowLayout& layout) {
  Json json{{"elements", layout.elements}, {"parameters", Json::array()}, {"ranks", Json::array()}};
  for (const std::int64_t offset : layout.offsets) json["parameters"].push_back({{"offset", offset}});
  for (int shard = 0; shard < layout.shards; ++shard) {
    json["ranks"].push_back({{"local_rows", rows_of(layout, shard)}});
  }
  return json_text(json, -1);
}

std::string table_of(const core::RowLayout& layout) {
  std::string text = fmt::format("{:>9} {:>16} {:>14}\n", "parameter", "shape", "offset");
  auto out = std::back_inserter(text);
  for (std::size_t i = 0; i < layout.offsets.size(); ++i) {
    fmt::format_to(out, "{:>9} {:>16} {:>14}\n", i, fmt::format("{}", fmt::join(layout.shapes[i], "x")),
                   layout.offsets[i]);
  }
  fmt::format_to(out, "\n{:>9}  rows of each parameter\n", "rank");
  for (int shard = 0; shard < layout.shards; ++shard) {
    fmt::format_to(out, "{:>9}  {}\n", shard, fmt::join(rows_of(layout, shard), " "));
  }
  fmt::format_to(out, "\n{} elements\n", layout.elements);
  return text;
}

}  // namespace

core::Result<std::string> report_layout(const LayoutArguments& arguments) {
  const auto policy = TRY(core::layout_policy_from_name(arguments.policy));
  if (policy == core::LayoutPolicy::row_aligned) {
    if (arguments.options.bucket_size || arguments.options.pad_for_bus_bandwidth ||
        !arguments.parameters.shared.empty()) {
      return core::fail(
          core::Errc::invalid_argument,
          "the policy row_aligned has no buckets; leave out --bucket-size, --high-busbw and --shared");
    }
    const auto shapes = TRY(parse_shapes(arguments.parameters));
    const auto layout = TRY(core::row_aligned_layout(shapes, arguments.options.shards));
    return arguments.json ? json_of(layout) : table_of(layout);
  }
  const auto parameters = TRY(parse_parameters(arguments.parameters));
  const auto layout = TRY(core::buffer_layout(policy, parameters, arguments.options));
  return arguments.json ? json_of(layout) : table_of(layout);
}

}  // namespace troupe::apps
