#include "apps/troupe/launch/lines.hpp"

#include <algorithm>

namespace troupe::apps {

namespace {

/// What a terminal shows of a line in which carriage returns go back to its beginning.
std::string_view visible(std::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const std::size_t restart = line.rfind('\r');
  if (restart != std::string_view::npos) line.remove_prefix(restart + 1);
  return line;
}

}  // namespace

void LineAssembler::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    const std::size_t room = cap_bytes_ - line_.size();
    const std::size_t taken = std::min({newline, bytes.size(), room});
    line_.append(bytes.substr(0, taken));
    bytes.remove_prefix(taken);
    if (!bytes.empty() && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      emit();
    } else if (line_.size() == cap_bytes_) {
      emit();
    }
  }
}

void LineAssembler::finish() {
  if (!line_.empty()) emit();
}

bool LineAssembler::show_progress() {
  if (line_.find('\r') == std::string::npos) return false;
  std::string shown(visible(line_));
  if (shown.empty() || progress_ == shown) return false;
  sink_(shown, LineKind::progress);
  // What was drawn before is not needed any more; the rest still begins with a carriage return.
  line_ = '\r' + shown + (line_.back() == '\r' ? "\r" : "");
  progress_ = std::move(shown);
  return true;
}

void LineAssembler::emit() {
  const std::string_view shown = visible(line_);
  sink_(shown, progress_ == shown ? LineKind::repeated : LineKind::whole);
  line_.clear();
  progress_.reset();
}

void Tail::add(std::string_view line) {
  constexpr std::size_t kLongest = 1000;
  lines_.emplace_back(line.substr(0, kLongest));
  if (lines_.size() > limit_) lines_.pop_front();
}

}  // namespace troupe::apps
