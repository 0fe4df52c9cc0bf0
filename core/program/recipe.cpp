#include "core/program/recipe.hpp"

#include <fmt/format.h>

#include "core/enum_names.hpp"

namespace troupe::core {
namespace {

constexpr auto kMarks = enum_names<Mark>("prepared", "exchanged", "reduced", "cleared", "updated", "released",
                                         "staged", "measured");
constexpr auto kQueues = enum_names<Queue>("stream", "sums");
constexpr auto kPlaces =
    enum_names<Place>("none", "kept_parameters", "full_parameters", "sums", "full_gradients", "carried",
                      "sent", "arrived", "blocks", "verdict");
constexpr auto kActionNames = enum_names<Action>(
    "wait", "record", "reserve", "carry", "note", "count", "cut_sums", "cut_part", "cut_gather",
    "cut_exchange", "send", "pack_part", "pack_blocks", "keep", "post", "post_blocks", "accumulate",
    "add_tree", "add_in_order", "add_members", "unpack", "unpack_blocks", "unpack_others", "round", "measure",
    "clear", "write_verdict", "read_verdict", "merged");

void append(std::string& text, const std::vector<RecipeStep>& steps) {
  for (const RecipeStep& step : steps) {
    if (!text.empty() && text.back() != '[') text += "; ";
    text += describe(step);
  }
}

}  // namespace

std::string_view name_of(Mark mark) noexcept {
  return kMarks[mark];
}

std::string_view name_of(Queue queue) noexcept {
  return kQueues[queue];
}

std::string_view name_of(Place place) noexcept {
  return kPlaces[place];
}

std::string_view name_of(Action action) noexcept {
  return kActionNames[action];
}

std::string describe(const RecipeStep& step) {
  std::string text(name_of(step.action));
  if (step.action == Action::wait || step.action == Action::record)
    text += fmt::format(" {}", name_of(step.mark));
  if (step.from != Place::none) text += fmt::format(" {}", name_of(step.from));
  if (step.to != Place::none) text += fmt::format(" to {}", name_of(step.to));
  if (step.scaled) text += " scaled";
  if (step.queue == Queue::sums) text += " on sums";
  return text;
}

std::string describe(const Recipe& recipe) {
  std::string text;
  append(text, recipe.before);
  if (!recipe.each_chunk.empty()) {
    text += text.empty() ? "[" : "; [";
    append(text, recipe.each_chunk);
    text += "]";
  }
  append(text, recipe.after);
  return text;
}

}  // namespace troupe::core
