#include "apps/gpt/text/normalizer.hpp"

#include <utility>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

Result<std::u16string> normalise(const std::vector<NormalizerStep>& steps, std::u16string text, Place place) {
  for (const NormalizerStep& step : steps) {
    if (const auto* form = std::get_if<NormalForm>(&step)) text = TRY(form->apply(text));
    if (const auto* before = std::get_if<PrependedText>(&step);
        before && !text.empty() && place != Place::continued)
      text.insert(0, before->text);
    if (const auto* change = std::get_if<ReplacedText>(&step))
      text = replaced(text, occurrences_of(change->from, text), change->to);
  }
  return text;
}

std::vector<TextRange> occurrences_of(std::u16string_view what, std::u16string_view text) {
  CHECK(!what.empty(), "nothing is everywhere");
  std::vector<TextRange> places;
  for (std::size_t at = text.find(what); at != std::u16string_view::npos;
       at = text.find(what, at + what.size()))
    places.push_back({at, at + what.size()});
  return places;
}

std::u16string replaced(std::u16string_view text, const std::vector<TextRange>& places,
                        std::u16string_view by) {
  std::u16string result;
  std::size_t done = 0;
  for (const TextRange& place : places) {
    result.append(text.substr(done, place.start - done)).append(by);
    done = place.end;
  }
  result.append(text.substr(done));
  return result;
}

}  // namespace troupe::apps::gpt
