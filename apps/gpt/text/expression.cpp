#include "apps/gpt/text/expression.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "apps/gpt/text/expression_tree.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

using Step = ExpressionStep;
using Tree = ExpressionTree;

constexpr std::size_t kMostSteps = 10'000;
// Steps of matching per character: some, and a few per step of the expression.
constexpr std::size_t kWork = 100;
constexpr std::size_t kLeastText = 10'000;  // a shorter text may take as long
constexpr std::size_t kWorkPerStep = 8;

class Compiler {
 public:
  explicit Compiler(std::vector<Step>& steps) : steps_(steps) {}

  void add(const Tree& tree) {
    if (is_full()) return;
    switch (tree.kind) {
      case Tree::Kind::set:
        put({.kind = Step::Kind::one, .set = tree.set});
        return;
      case Tree::Kind::sequence:
        for (const Tree& part : tree.parts) add(part);
        return;
      case Tree::Kind::alternatives:
        return add_alternatives(tree);
      case Tree::Kind::repetition:
        return add_repetition(tree);
      case Tree::Kind::ahead:
        return add_inner(Step::Kind::ahead, tree.parts.front());
      case Tree::Kind::not_ahead:
        return add_inner(Step::Kind::not_ahead, tree.parts.front());
      case Tree::Kind::whole:
        return add_inner(Step::Kind::whole, tree.parts.front());
      case Tree::Kind::behind:
        put({.kind = Step::Kind::behind, .set = tree.parts.front().set});
        return;
      case Tree::Kind::not_behind:
        put({.kind = Step::Kind::not_behind, .set = tree.parts.front().set});
        return;
    }
  }

  void end() { put({.kind = Step::Kind::done}); }
  bool is_full() const { return steps_.size() > kMostSteps; }

 private:
  std::size_t put(const Step& step) {
    steps_.push_back(step);
    return steps_.size() - 1;
  }

  void add_alternatives(const Tree& tree) {
    std::vector<std::size_t> jumps;
    for (std::size_t i = 0; i < tree.parts.size(); ++i) {
      const bool is_last = i + 1 == tree.parts.size();
      const std::size_t choice = is_last ? 0 : put({.kind = Step::Kind::choose, .first = steps_.size() + 1});
      add(tree.parts[i]);
      if (is_last) break;
      jumps.push_back(put({.kind = Step::Kind::jump}));
      steps_[choice].second = steps_.size();
    }
    for (const std::size_t jump : jumps) steps_[jump].first = steps_.size();
  }

  void add_inner(Step::Kind kind, const Tree& part) {
    const std::size_t begin = put({.kind = kind});
    add(part);
    end();
    steps_[begin].first = steps_.size();
  }

  void add_repetition(const Tree& tree) {
    const Tree& part = tree.parts.front();
    const bool is_set = part.kind == Tree::Kind::set;
    if (is_set && tree.greed != Tree::Greed::least) {
      put({.kind = Step::Kind::many,
           .set = part.set,
           .least = tree.least,
           .most = tree.most,
           .keeps_all = tree.greed == Tree::Greed::all});
      return;
    }
    if (tree.greed == Tree::Greed::all) {
      Tree greedy = tree;
      greedy.greed = Tree::Greed::most;
      return add_inner(Step::Kind::whole, greedy);
    }
    for (std::size_t i = 0; i < tree.least; ++i) add(part);
    std::vector<std::size_t> choices;
    const bool is_endless = tree.most == kNoLimit;
    for (std::size_t i = tree.least; i < (is_endless ? tree.least + 1 : tree.most) && !is_full(); ++i) {
      choices.push_back(put({.kind = Step::Kind::choose}));
      add(part);
      if (is_endless) put({.kind = Step::Kind::jump, .first = choices.back()});
    }
    for (const std::size_t choice : choices) {
      std::size_t inside = choice + 1, outside = steps_.size();
      if (tree.greed == Tree::Greed::least) std::swap(inside, outside);
      steps_[choice].first = inside;
      steps_[choice].second = outside;
    }
  }

  std::vector<Step>& steps_;
};

class Matcher {
 public:
  Matcher(const CompiledExpression& expression, std::u16string_view text)
      : steps_(expression.steps),
        sets_(expression.sets),
        text_(text),
        work_((text.size() + kLeastText) * (kWork + kWorkPerStep * steps_.size())) {}

  /// Where the match that begins at `at` ends, if there is one.
  std::optional<std::size_t> match(std::size_t at) {
    choices_.clear();
    return run(0, at);
  }
  bool is_exhausted() const { return work_ == 0; }
  std::size_t after(std::size_t at) const { return at + (is_pair(at) ? 2 : 1); }

 private:
  // Where to go on when a step cannot be taken.
  struct Choice {
    std::size_t step;
    std::size_t at;
    std::size_t least;  // of `many`: not before this place; otherwise kNoLimit
  };

  bool is_pair(std::size_t at) const { return (text_[at] & 0xfc00) == 0xd800 && at + 1 < text_.size(); }
  char32_t character(std::size_t at) const {
    const char32_t unit = text_[at];
    return is_pair(at) ? 0x10000 + ((unit & 0x3ff) << 10 | (text_[at + 1] & 0x3ff)) : unit;
  }
  std::size_t before(std::size_t at) const { return at - (at > 1 && is_pair(at - 2) ? 2 : 1); }
  bool is_in(std::size_t set, std::size_t at) const {
    return at < text_.size() && sets_[set].contains(character(at));
  }
  bool was_in(std::size_t set, std::size_t at) const {
    return at > 0 && sets_[set].contains(character(before(at)));
  }
  void spend(std::size_t work) { work_ -= std::min(work_, work); }

  std::optional<std::size_t> run(std::size_t step, std::size_t at) {
    const std::size_t base = choices_.size();
    while (true) {
      spend(1);
      if (is_exhausted()) return {};
      if (steps_[step].kind == Step::Kind::done) {
        choices_.resize(base);
        return at;
      }
      if (take(step, at)) continue;
      if (choices_.size() == base) return {};
      go_back(step, at);
    }
  }

  // Goes on after the last choice, which has another way.
  void go_back(std::size_t& step, std::size_t& at) {
    Choice& last = choices_.back();
    if (last.least == kNoLimit) {
      step = last.step;
      at = last.at;
      choices_.pop_back();
      return;
    }
    step = last.step + 1;
    at = last.at = before(last.at);
    if (last.at == last.least) choices_.pop_back();
  }

  bool take(std::size_t& step, std::size_t& at) {
    const Step& now = steps_[step];
    switch (now.kind) {
      case Step::Kind::one:
        if (!is_in(now.set, at)) return false;
        at = after(at);
        break;
      case Step::Kind::many:
        return take_many(step, at);
      case Step::Kind::choose:
        choices_.push_back({now.second, at, kNoLimit});
        step = now.first;
        return true;
      case Step::Kind::jump:
        step = now.first;
        return true;
      case Step::Kind::behind:
        if (!was_in(now.set, at)) return false;
        break;
      case Step::Kind::not_behind:
        if (was_in(now.set, at)) return false;
        break;
      default:
        return take_inner(step, at);
    }
    ++step;
    return true;
  }

  bool take_many(std::size_t& step, std::size_t& at) {
    const Step& now = steps_[step];
    std::size_t count = 0, least = at;
    for (; count < now.most && is_in(now.set, at); ++count) {
      at = after(at);
      if (count + 1 == now.least) least = at;
    }
    spend(count);
    if (count < now.least) return false;
    if (at > least && !now.keeps_all) choices_.push_back({step, at, least});
    ++step;
    return true;
  }

  bool take_inner(std::size_t& step, std::size_t& at) {
    const Step& now = steps_[step];
    const auto end = run(step + 1, at);
    if (end.has_value() == (now.kind == Step::Kind::not_ahead)) return false;
    if (now.kind == Step::Kind::whole) at = *end;
    step = now.first;
    return true;
  }

  const std::vector<Step>& steps_;
  const std::vector<CharacterSet>& sets_;
  std::u16string_view text_;
  std::size_t work_;
  std::vector<Choice> choices_;
};

}  // namespace

Result<CompiledExpression> compile_expression(std::string_view expression) {
  CompiledExpression compiled;
  const auto tree = TRY(parse_expression(expression, compiled.sets));
  Compiler compiler(compiled.steps);
  compiler.add(tree);
  compiler.end();
  if (compiler.is_full())
    return fail(Errc::unavailable, "a regular expression of {} bytes repeats too much", expression.size());
  return compiled;
}

Result<std::vector<TextRange>> matches_of(const CompiledExpression& expression, std::u16string_view text) {
  Matcher matcher(expression, text);
  std::vector<TextRange> found;
  for (std::size_t at = 0; at <= text.size();) {
    const auto end = matcher.match(at);
    if (matcher.is_exhausted())
      return fail(Errc::unavailable, "it takes too long for a text of {} characters, of which it has done {}",
                  text.size(), at);
    const bool is_after_match = !found.empty() && found.back().end == at;
    if (!end || (*end == at && is_after_match)) {
      at = at < text.size() ? matcher.after(at) : at + 1;
      continue;
    }
    found.push_back({at, *end});
    at = *end;
  }
  return found;
}

}  // namespace troupe::apps::gpt
