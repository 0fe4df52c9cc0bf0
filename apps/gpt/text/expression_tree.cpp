#include "apps/gpt/text/expression_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "apps/gpt/text/unicode.hpp"
#include "core/errors.hpp"
#include "core/utf8.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

using Kind = ExpressionTree::Kind;
using Greed = ExpressionTree::Greed;

constexpr int kDeepest = 50;
constexpr std::size_t kMostRepetitions = 1000;

bool is_ascii_letter(char32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

class Parser {
 public:
  Parser(std::string_view expression, std::u32string text, std::vector<CharacterSet>& sets)
      : expression_(expression), text_(std::move(text)), sets_(sets) {}

  Result<ExpressionTree> parse() {
    auto tree = TRY(alternatives(false, 0));
    if (at_ < text_.size()) return refuse("a ')' without '('");
    return tree;
  }

 private:
  bool ends() const { return at_ == text_.size(); }
  bool sees(std::u32string_view what) const {
    return std::u32string_view(text_).substr(at_).starts_with(what);
  }
  bool take(std::u32string_view what) {
    if (!sees(what)) return false;
    at_ += what.size();
    return true;
  }
  tl::unexpected<core::Error> refuse(std::string_view what) const {
    return fail(Errc::unavailable, "the regular expression {} has {}, which is not taken",
                core::beginning_of(expression_, 200), what);
  }

  Result<ExpressionTree> alternatives(bool folds, int depth) {
    if (depth > kDeepest) return refuse("more than 50 groups inside each other");
    if (take(U"(?i)")) folds = true;
    ExpressionTree tree{.kind = Kind::alternatives};
    do tree.parts.push_back(TRY(sequence(folds, depth)));
    while (take(U"|"));
    return tree.parts.size() == 1 ? std::move(tree.parts.front()) : std::move(tree);
  }

  Result<ExpressionTree> sequence(bool folds, int depth) {
    ExpressionTree tree;
    char32_t before = 0;  // an ASCII letter just before
    while (!ends() && !sees(U"|") && !sees(U")")) {
      const std::size_t start = at_;
      tree.parts.push_back(TRY(repeated(folds, depth)));
      const char32_t letter = at_ == start + 1 && is_ascii_letter(text_[start]) ? text_[start] | 0x20 : 0;
      if (folds && is_one_letter(before, letter))
        return refuse("letters after (?i) that are also one character");
      before = letter;
    }
    return tree;
  }

  // Oniguruma takes sharp s for "ss", and ligatures for what they join.
  static bool is_one_letter(char32_t first, char32_t second) {
    return (first == 's' && (second == 's' || second == 't')) ||
           (first == 'f' && (second == 'f' || second == 'i' || second == 'l'));
  }

  Result<ExpressionTree> repeated(bool folds, int depth) {
    auto one = TRY(atom(folds, depth));
    ExpressionTree tree{.kind = Kind::repetition};
    bool is_exact = false, has_bounds = false;
    if (take(U"*")) {
      tree.least = 0, tree.most = kNoLimit;
    } else if (take(U"+")) {
      tree.least = 1, tree.most = kNoLimit;
    } else if (take(U"?")) {
      tree.least = 0, tree.most = 1;
    } else if (take(U"{")) {
      has_bounds = true;
      TRY(bounds(tree));
      is_exact = text_[at_ - 2] != ',' && tree.least == tree.most;
    } else {
      return one;
    }
    if (is_look(one.kind)) return refuse("a repetition of a look ahead or behind");
    if (!is_exact && take(U"?")) tree.greed = Greed::least;
    if (!has_bounds && tree.greed == Greed::most && take(U"+")) tree.greed = Greed::all;
    for (const char32_t more : U"*+?{") {
      if (more != 0 && !ends() && text_[at_] == more) return refuse("a repetition of a repetition");
    }
    if (one.kind != Kind::set && tree.most == kNoLimit && one.may_be_empty())
      return refuse("an endless repetition of what may be empty");
    tree.parts.push_back(std::move(one));
    return tree;
  }

  static bool is_look(Kind kind) {
    return kind == Kind::ahead || kind == Kind::not_ahead || kind == Kind::behind || kind == Kind::not_behind;
  }

  // After '{'.
  Result<void> bounds(ExpressionTree& tree) {
    const auto number = [&]() -> std::optional<std::size_t> {
      std::size_t value = 0;
      const std::size_t start = at_;
      for (; !ends() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
        value = std::min<std::size_t>(value * 10 + (text_[at_] - '0'), kMostRepetitions + 1);
      return at_ == start ? std::nullopt : std::optional(value);
    };
    const auto least = number();
    if (!least) return refuse("a '{' without a number");
    tree.least = tree.most = *least;
    if (take(U",")) tree.most = number().value_or(kNoLimit);
    if (!take(U"}")) return refuse("a '{' without '}'");
    if (tree.most < tree.least) return refuse("bounds in the wrong order");
    if (tree.least > kMostRepetitions || (tree.most != kNoLimit && tree.most > kMostRepetitions))
      return refuse("more than 1000 repetitions");
    return {};
  }

  Result<ExpressionTree> atom(bool folds, int depth) {
    if (take(U"(")) return group(folds, depth);
    CharacterSet set;
    if (take(U"[")) {
      TRY(bracket(set, folds));
    } else if (take(U"\\")) {
      TRY(escaped(set, folds));
    } else if (take(U".")) {
      set.add(U'\n', U'\n');
      set.invert();
    } else {
      const char32_t c = text_[at_];
      for (const char32_t special : U"^$*+?{") {
        if (special != 0 && c == special) return refuse(fmt::format("a '{}'", static_cast<char>(c)));
      }
      ++at_;
      TRY(add_character(set, c, folds));
      if (folds) set.add_cases();
    }
    return tree_of(std::move(set));
  }

  ExpressionTree tree_of(CharacterSet set) {
    set.freeze();
    sets_.push_back(std::move(set));
    return {.kind = Kind::set, .set = sets_.size() - 1};
  }

  Result<ExpressionTree> group(bool folds, int depth) {
    static constexpr std::pair<std::u32string_view, Kind> kLooks[] = {{U"?=", Kind::ahead},
                                                                      {U"?!", Kind::not_ahead},
                                                                      {U"?<=", Kind::behind},
                                                                      {U"?<!", Kind::not_behind},
                                                                      {U"?>", Kind::whole}};
    std::optional<Kind> look;
    for (const auto& [text, kind] : kLooks) {
      if (!look && take(text)) look = kind;
    }
    if (!look && take(U"?i:")) {
      folds = true;
    } else if (!look && !take(U"?:") && sees(U"?")) {
      return refuse(sees(U"?i)") ? "a (?i) that does not begin a group" : "a group of another kind");
    }
    auto inner = TRY(alternatives(folds, depth + 1));
    if (!take(U")")) return refuse("a '(' without ')'");
    if (!look) return inner;
    const bool is_behind = *look == Kind::behind || *look == Kind::not_behind;
    if (is_behind && inner.kind == Kind::sequence && inner.parts.size() == 1)
      inner = ExpressionTree(std::move(inner.parts.front()));
    if (is_behind && inner.kind != Kind::set) return refuse("a look behind at more than one character");
    ExpressionTree tree{.kind = *look};
    tree.parts.push_back(std::move(inner));
    return tree;
  }

  Result<void> add_character(CharacterSet& set, char32_t c, bool folds) {
    if (folds && c >= 0x80) return refuse("a character after (?i) that is not ASCII");
    set.add(c, c);
    return {};
  }

  // After '\', outside of brackets.
  Result<void> escaped(CharacterSet& set, bool folds) {
    const auto c = TRY(escape(set, folds));
    if (!c) return {};
    TRY(add_character(set, *c, folds));
    if (folds) set.add_cases();
    return {};
  }

  // After '\': the character that it stands for, or none for a class, which is added.
  Result<std::optional<char32_t>> escape(CharacterSet& set, bool folds) {
    if (ends()) return refuse("a '\\' at its end");
    const char32_t c = text_[at_++];
    if (c == 'n') return std::optional(U'\n');
    if (c == 'r') return std::optional(U'\r');
    if (c == 't') return std::optional(U'\t');
    if (c == 'f') return std::optional(U'\f');
    if (c == 'v') return std::optional(U'\v');
    const bool is_class = std::u32string_view(U"sSdDwWpP").find(c) != std::u32string_view::npos;
    if (is_class) {
      if (folds && c != 's' && c != 'S' && c != 'd') return refuse("a property after (?i)");
      if ((c | 0x20) == 'p') {
        TRY(property(set, c == 'P'));
      } else {
        set.add_class(static_cast<char>(c));
      }
      return std::optional<char32_t>{};
    }
    if (is_ascii_letter(c) || (c >= '0' && c <= '9'))
      return refuse(fmt::format("\\{}", static_cast<char>(c)));
    return std::optional(c);
  }

  Result<void> property(CharacterSet& set, bool is_negated) {
    if (!take(U"{")) return refuse("a \\p without '{'");
    if (take(U"^")) is_negated = !is_negated;
    std::string name;
    for (; !ends() && text_[at_] != '}'; ++at_)
      name.push_back(text_[at_] < 0x80 ? static_cast<char>(text_[at_]) : '?');
    if (!take(U"}")) return refuse("a \\p without '}'");
    const auto added = set.add_property(name, is_negated);
    if (!added)
      return refuse(fmt::format("\\p{{{}}}, and {}", core::beginning_of(name, 20), added.error().message));
    return {};
  }

  // After '['.
  Result<void> bracket(CharacterSet& set, bool folds) {
    const bool is_negated = take(U"^");
    if (sees(U"]")) return refuse("a set without characters");
    while (!take(U"]")) {
      if (ends()) return refuse("a '[' without ']'");
      if (sees(U"[") || sees(U"&&")) return refuse(sees(U"[") ? "a '[' in a set" : "a '&&' in a set");
      const bool is_dash = sees(U"-");
      const auto first = TRY(member(set, folds));
      const bool is_last_dash = is_dash && sees(U"]");
      const bool is_first_dash = is_dash && (text_[at_ - 2] == '[' || text_[at_ - 2] == '^');
      if (is_dash && !is_last_dash && !is_first_dash) return refuse("a '-' in a set that is not at an end");
      const bool is_range = !sees(U"-]") && sees(U"-");
      if (!first && is_range) return refuse("a '-' in a set after a class");
      if (!first) continue;
      if (!is_range) {
        TRY(add_character(set, *first, folds));
        continue;
      }
      ++at_;
      if (ends() || sees(U"[") || sees(U"-")) return refuse("a '-' in a set that is not at an end");
      const auto last = TRY(member(set, folds));
      if (!last || *last < *first || is_dash || (folds && *last >= 0x80))
        return refuse("a range in a set that is none");
      set.add(*first, *last);
    }
    if (folds) set.add_cases();
    if (is_negated) set.invert();
    return {};
  }

  Result<std::optional<char32_t>> member(CharacterSet& set, bool folds) {
    if (take(U"\\")) return escape(set, folds);
    return std::optional(text_[at_++]);
  }

  std::string_view expression_;
  std::u32string text_;
  std::vector<CharacterSet>& sets_;
  std::size_t at_ = 0;
};

}  // namespace

bool ExpressionTree::may_be_empty() const {
  const auto is_empty = [](const ExpressionTree& part) { return part.may_be_empty(); };
  switch (kind) {
    case Kind::set:
      return false;
    case Kind::alternatives:
      return std::any_of(parts.begin(), parts.end(), is_empty);
    case Kind::repetition:
      return least == 0 || parts.front().may_be_empty();
    case Kind::sequence:
    case Kind::whole:
      return std::all_of(parts.begin(), parts.end(), is_empty);
    default:
      return true;
  }
}

Result<ExpressionTree> parse_expression(std::string_view expression, std::vector<CharacterSet>& sets) {
  return Parser(expression, TRY(utf32_of(expression)), sets).parse();
}

}  // namespace troupe::apps::gpt
