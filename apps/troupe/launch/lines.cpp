#include "apps/troupe/launch/lines.hpp"

#include <algorithm>

namespace troupe::apps {

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

void LineAssembler::emit() {
  std::string_view shown = line_;
  while (!shown.empty() && shown.back() == '\r') shown.remove_suffix(1);
  const std::size_t restart = shown.rfind('\r');
  if (restart != std::string_view::npos) shown.remove_prefix(restart + 1);
  sink_(shown);
  line_.clear();
}

void Tail::add(std::string_view line) {
  constexpr std::size_t kLongest = 1000;
  lines_.emplace_back(line.substr(0, kLongest));
  if (lines_.size() > limit_) lines_.pop_front();
}

}  // namespace troupe::apps
