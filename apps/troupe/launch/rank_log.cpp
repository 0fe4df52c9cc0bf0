#include "apps/troupe/launch/rank_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "apps/troupe/launch/environment.hpp"

namespace troupe::apps {

using actors::OutputStream;

namespace {

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

}  // namespace

RankLog::RankLog(const Job& job, int generation, int rank, Console& console)
    : prefix_(line_prefix(job.options.role, rank, ::getenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"))),
      sides_{Side{-1, true, LineAssembler([this, &console](std::string_view line) {
                    if (sides_[0].shown) console.line(OutputStream::out, prefix_, line);
                  })},
             Side{-1, true, LineAssembler([this, &console](std::string_view line) {
                    errors_.add(line);
                    if (sides_[1].shown) console.line(OutputStream::err, prefix_, line);
                  })}} {
  const bool shown = job.shown_ranks.contains(rank);
  const auto directory = rank_directory(job, generation, rank);
  if (job.redirects.out(rank) || job.tee.out(rank)) sides_[0].file = open_log(directory / "stdout.log");
  if (job.redirects.err(rank) || job.tee.err(rank)) sides_[1].file = open_log(directory / "stderr.log");
  sides_[0].shown = shown && (job.tee.out(rank) || !job.redirects.out(rank));
  sides_[1].shown = shown && (job.tee.err(rank) || !job.redirects.err(rank));
}

RankLog::~RankLog() {
  for (const Side& each : sides_) {
    if (each.file >= 0) ::close(each.file);
  }
}

void RankLog::output(OutputStream stream, std::string_view bytes) {
  if (side(stream).file >= 0) write_all(side(stream).file, bytes);
  side(stream).lines.feed(bytes);
}

void RankLog::finish(OutputStream stream) {
  side(stream).lines.finish();
}

std::string line_prefix(const std::string& role, int rank, const char* line_template) {
  if (!line_template) return fmt::format("[rank {}] ", rank);
  std::string prefix = line_template;
  replace_all(prefix, "${role_name}", role);
  replace_all(prefix, "${local_rank}", std::to_string(rank));
  replace_all(prefix, "${rank}", std::to_string(rank));
  return prefix;
}

}  // namespace troupe::apps
