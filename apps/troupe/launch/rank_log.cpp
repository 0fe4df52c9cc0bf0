#include "apps/troupe/launch/rank_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "apps/troupe/host/host_facts.hpp"

namespace troupe::apps {

using actors::OutputStream;

namespace {

/// Progress bars are drawn ten times a second; this often is enough for a console of whole lines.
constexpr std::chrono::seconds kProgressPause{1};

int open_log(const std::filesystem::path& path) {
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

std::string template_of(const Job& job) {
  if (!job.options.log_line_prefix_template.empty()) return job.options.log_line_prefix_template;
  const char* const chosen = ::getenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
  return chosen == nullptr ? "" : chosen;
}

/// An object of JSON says of which rank it is, and is to stay one.
std::string prefix_of(const Job& job, int slot, const std::optional<RankNumbers>& numbers) {
  const auto line_template = template_of(job);
  if (job.log.json && line_template.empty()) return "";
  const int job_slot = job.place.first_slot + slot;
  if (!numbers && line_template.empty()) return fmt::format("[spare {}] ", job_slot);
  return line_prefix(job.options.role, numbers.value_or(RankNumbers{job_slot, slot}), line_template);
}

/// What a spare says has no rank that could be chosen.
bool is_shown(const Job& job, const std::optional<RankNumbers>& numbers) {
  return numbers ? job.options.local_ranks_filter.empty() || job.shown_ranks.contains(numbers->local_rank)
                 : job.options.local_ranks_filter.empty();
}

}  // namespace

RankLog::RankLog(const Job& job, int generation, int slot, std::optional<RankNumbers> numbers,
                 Console& console, const actors::Clock& clock)
    : job_(job),
      prefix_(prefix_of(job, slot, numbers)),
      console_(console),
      clock_(clock),
      sides_{Side{LineAssembler(
                 [this](std::string_view text, LineKind kind) { line(OutputStream::out, text, kind); })},
             Side{LineAssembler(
                 [this](std::string_view text, LineKind kind) { line(OutputStream::err, text, kind); })}} {
  const auto directory = rank_directory(job, generation, slot);
  auto& [out, err] = sides_;
  if (job.redirects.out(slot) || job.tee.out(slot)) out.file = open_log(directory / "stdout.log");
  if (job.redirects.err(slot) || job.tee.err(slot)) err.file = open_log(directory / "stderr.log");
  out.redirected = job.redirects.out(slot) && !job.tee.out(slot);
  err.redirected = job.redirects.err(slot) && !job.tee.err(slot);
  out.shown = is_shown(job, numbers) && !out.redirected;
  err.shown = is_shown(job, numbers) && !err.redirected;
  out.filters = &job.stdout_filters;
  err.filters = &job.stderr_filters;
  const auto common = directory.parent_path();
  if (!out.filters->empty()) out.filtered_file = open_log(common / "filtered_stdout.log");
  if (!err.filters->empty()) err.filtered_file = open_log(common / "filtered_stderr.log");
}

RankLog::~RankLog() {
  for (const Side& each : sides_) {
    for (const int file : {each.file, each.filtered_file}) {
      if (file >= 0) ::close(file);
    }
  }
}

void RankLog::becomes(RankNumbers numbers) {
  prefix_ = prefix_of(job_, 0, numbers);
  for (Side& each : sides_) each.shown = is_shown(job_, numbers) && !each.redirected;
}

void RankLog::output(OutputStream stream, std::string_view bytes) {
  Side& from = side(stream);
  if (from.file >= 0) write_all(from.file, bytes);
  from.lines.feed(bytes);
  const auto now = clock_.now();
  if (now >= from.progress_is_due && from.lines.show_progress()) from.progress_is_due = now + kProgressPause;
}

void RankLog::line(OutputStream stream, std::string_view text, LineKind kind) {
  const Side& from = side(stream);
  if (stream == OutputStream::err && kind != LineKind::progress) errors_.add(text);
  if (from.shown && kind != LineKind::repeated) console_.line(stream, prefix_, text);
  if (from.filtered_file < 0 || kind == LineKind::progress) return;
  const auto matches = [&](const std::string& filter) { return text.find(filter) != std::string_view::npos; };
  if (!std::ranges::any_of(*from.filters, matches)) return;
  write_all(from.filtered_file, prefix_ + std::string(text) + "\n");
}

void RankLog::finish(OutputStream stream) {
  side(stream).lines.finish();
}

std::string line_prefix(const std::string& role, RankNumbers of, const std::string& line_template) {
  if (line_template.empty()) return fmt::format("[rank {}] ", of.rank);
  std::string prefix = line_template;
  replace_all(prefix, "${role_name}", role);
  replace_all(prefix, "${local_rank}", std::to_string(of.local_rank));
  replace_all(prefix, "${rank}", std::to_string(of.rank));
  replace_all(prefix, "${hostname}", host_name());
  return prefix;
}

}  // namespace troupe::apps
