#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include "apps/troupe/checkpoint/show.hpp"

namespace troupe::apps {

namespace {

constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
constexpr std::int64_t kMostRows = 16;
constexpr std::int64_t kMostCells = 60;

/// The one or two axes that are drawn, in order; the last one goes across.
std::vector<std::size_t> drawn_axes(const core::ManifestTensor& tensor) {
  std::vector<std::pair<std::size_t, std::size_t>> cuts;
  for (std::size_t axis = 0; axis < tensor.shape.size(); ++axis) {
    std::set<std::int64_t> begins;
    for (const auto& shard : tensor.shards) begins.insert(shard.box.offset[axis]);
    cuts.emplace_back(begins.size(), axis);
  }
  std::stable_sort(cuts.begin(), cuts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::size_t> axes;
  for (std::size_t i = 0; i < std::min<std::size_t>(cuts.size(), 2); ++i) axes.push_back(cuts[i].second);
  std::sort(axes.begin(), axes.end());
  return axes;
}

/// `cells` characters stand for `extent` indices.
struct Scale {
  std::int64_t extent = 1;
  std::int64_t cells = 1;

  std::int64_t first(std::int64_t cell) const {
    return extent / cells * cell + extent % cells * cell / cells;
  }
  std::int64_t middle(std::int64_t cell) const { return (first(cell) + first(cell + 1) - 1) / 2; }
};

char letter_at(const core::ManifestTensor& tensor, const core::BoxIndex& index, const core::Shape& at) {
  const auto found = index.touching({at, core::Shape(at.size(), 1)});
  return found.empty() || found.front() >= tensor.shards.size() ? '?' : shard_letter(found.front());
}

std::string described(std::size_t axis, const Scale& scale, const char* what) {
  if (scale.cells == scale.extent)
    return fmt::format("axis {}: {} indices, one per {}", axis, scale.extent, what);
  return fmt::format("axis {}: {} indices, about {:.4g} a {}", axis, scale.extent,
                     static_cast<double>(scale.extent) / static_cast<double>(scale.cells), what);
}

}  // namespace

char shard_letter(std::size_t shard) noexcept {
  return kLetters[shard % kLetters.size()];
}

std::string tensor_map(const core::ManifestTensor& tensor) {
  if (tensor.shards.empty()) return "no elements\n";
  std::vector<core::Box> boxes;
  for (const auto& shard : tensor.shards) boxes.push_back(shard.box);
  const core::BoxIndex index(std::move(boxes));
  const auto axes = drawn_axes(tensor);
  if (axes.empty()) return fmt::format("one element: {}\n", shard_letter(0));
  const auto across = axes.back();
  const Scale columns{tensor.shape[across], std::min(tensor.shape[across], kMostCells)};
  Scale rows;
  if (axes.size() == 2) rows = {tensor.shape[axes[0]], std::min(tensor.shape[axes[0]], kMostRows)};
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "across: {}\n", described(across, columns, "column"));
  if (axes.size() == 2) fmt::format_to(out, "down:   {}\n", described(axes[0], rows, "row"));
  if (tensor.shape.size() > 2) fmt::format_to(out, "at index 0 of the other axes\n");
  fmt::format_to(out, "\n{:>12}  0{:>{}}\n", "", tensor.shape[across], columns.cells);
  const std::string border(static_cast<std::size_t>(columns.cells), '-');
  fmt::format_to(out, "{:>12} +{}+\n", "", border);
  core::Shape at(tensor.shape.size(), 0);
  for (std::int64_t row = 0; row < rows.cells; ++row) {
    if (axes.size() == 2) at[axes[0]] = rows.middle(row);
    std::string line;
    for (std::int64_t column = 0; column < columns.cells; ++column) {
      at[across] = columns.middle(column);
      line += letter_at(tensor, index, at);
    }
    const auto label = axes.size() == 2 ? fmt::format("{}", rows.first(row)) : "";
    fmt::format_to(out, "{:>12} |{}|\n", label, line);
  }
  fmt::format_to(out, "{:>12} +{}+\n", axes.size() == 2 ? fmt::format("{}", rows.extent) : "", border);
  return text;
}

}  // namespace troupe::apps
