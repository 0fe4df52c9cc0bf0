#include "apps/gpt/text/word_split.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "core/errors.hpp"
#include "core/utf8.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

using Matches = SplitAtPattern::Matches;
using Word = std::function<Result<void>(std::u16string_view)>;

struct Piece {
  TextRange range;
  bool is_match = false;
};

/// All of a text, cut at its matches.
std::vector<Piece> pieces_of(std::u16string_view text, const std::vector<TextRange>& matches,
                             bool is_inverted) {
  std::vector<Piece> pieces;
  std::size_t done = 0;
  for (const TextRange& match : matches) {
    if (match.start > done) pieces.push_back({{done, match.start}, is_inverted});
    pieces.push_back({match, !is_inverted});
    done = match.end;
  }
  if (done < text.size()) pieces.push_back({{done, text.size()}, is_inverted});
  return pieces;
}

/// A match joins the piece before it, unless that is a match too.
std::vector<Piece> with_previous(const std::vector<Piece>& pieces) {
  std::vector<Piece> joined;
  bool was_match = false;
  for (const Piece& piece : pieces) {
    if (piece.is_match && !was_match && !joined.empty()) {
      joined.back().range.end = piece.range.end;
    } else {
      joined.push_back(piece);
    }
    was_match = piece.is_match;
  }
  return joined;
}

std::vector<Piece> with_next(const std::vector<Piece>& pieces) {
  std::vector<Piece> joined;  // from the last
  bool was_match = false;
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    if (piece->is_match && !was_match && !joined.empty()) {
      joined.back().range.start = piece->range.start;
    } else {
      joined.push_back(*piece);
    }
    was_match = piece->is_match;
  }
  std::reverse(joined.begin(), joined.end());
  return joined;
}

std::vector<Piece> contiguous(const std::vector<Piece>& pieces) {
  std::vector<Piece> joined;
  for (const Piece& piece : pieces) {
    if (!joined.empty() && joined.back().is_match == piece.is_match) {
      joined.back().range.end = piece.range.end;
    } else {
      joined.push_back(piece);
    }
  }
  return joined;
}

std::vector<Piece> words_of(std::vector<Piece> pieces, Matches matches) {
  switch (matches) {
    case Matches::isolated:
      break;
    case Matches::removed:
      pieces.erase(
          std::remove_if(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.is_match; }),
          pieces.end());
      break;
    case Matches::contiguous:
      return contiguous(pieces);
    case Matches::with_previous:
      return with_previous(pieces);
    case Matches::with_next:
      return with_next(pieces);
  }
  return pieces;
}

class Splitter {
 public:
  Splitter(std::span<const WordStep> steps, const Word& word) : steps_(steps), word_(word) {}

  Result<void> split(std::size_t step, std::u16string_view text, Place place) const {
    if (text.empty()) return {};
    if (step == steps_.size()) return word_(text);
    return std::visit([&](const auto& one) { return take(one, step, text, place); }, steps_[step]);
  }

 private:
  Result<void> split_all(std::size_t step, std::u16string_view text, const std::vector<Piece>& pieces,
                         Place place) const {
    for (const Piece& piece : pieces) {
      const auto [start, end] = piece.range;
      TRY(split(step + 1, text.substr(start, end - start), start == 0 ? place : Place::inner));
    }
    return {};
  }

  Result<void> take(const SplitAtPattern& at, std::size_t step, std::u16string_view text, Place place) const {
    auto pieces = pieces_of(text, TRY(at.pattern.matches(text)), at.is_inverted);
    return split_all(step, text, words_of(std::move(pieces), at.matches), place);
  }

  Result<void> take(const BlankBefore&, std::size_t step, std::u16string_view text, Place place) const {
    if (place == Place::continued || text.starts_with(u' ')) return split(step + 1, text, place);
    return split(step + 1, std::u16string(u" ").append(text), place);
  }

  Result<void> take(const VisibleBlanks& blanks, std::size_t step, std::u16string_view text,
                    Place place) const {
    std::u16string visible = replaced(text, occurrences_of(u" ", text), blanks.blank);
    const bool is_wanted =
        (blanks.prepends == VisibleBlanks::Prepends::always && place != Place::continued) ||
        (blanks.prepends == VisibleBlanks::Prepends::first && place == Place::first);
    if (is_wanted && !visible.starts_with(blanks.blank)) visible.insert(0, blanks.blank);
    if (!blanks.splits) return split(step + 1, visible, place);
    const auto pieces = pieces_of(visible, occurrences_of(blanks.blank, visible), false);
    return split_all(step, visible, with_next(pieces), place);
  }

  std::span<const WordStep> steps_;
  const Word& word_;
};

}  // namespace

Result<Pattern> Pattern::compile(std::string_view expression) {
  Pattern pattern;
  pattern.source_ = expression;
  pattern.what_ = TRY(Expression::compile(expression));
  return pattern;
}

Result<Pattern> Pattern::literal(std::string_view text) {
  if (text.empty()) return fail(Errc::unavailable, "an empty text is nothing to split at");
  Pattern pattern;
  pattern.source_ = text;
  pattern.what_ = TRY(utf16_of(text));
  return pattern;
}

Result<std::vector<TextRange>> Pattern::matches(std::u16string_view text) const {
  if (const auto* literal = std::get_if<std::u16string>(&what_)) return occurrences_of(*literal, text);
  auto found = std::get<Expression>(what_).matches(text);
  if (found) return found;
  return fail(found.error().code, "the regular expression {} cannot split a text: {}",
              core::beginning_of(source_, 200), found.error().message);
}

Result<void> split_words(const std::vector<WordStep>& steps, std::u16string_view text, Place place,
                         const Word& word) {
  return Splitter(steps, word).split(0, text, place);
}

}  // namespace troupe::apps::gpt
