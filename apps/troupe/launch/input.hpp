#pragma once

#include <asio/io_context.hpp>
#include <memory>

namespace troupe::apps {

/// The launcher's standard input, which goes to rank 0. A file or a pipe is handed over as it is. What is
/// typed at a terminal is read here, as long as the launcher is in the foreground, and passed on by a pipe:
/// the ranks are groups of processes of their own, which a terminal stops when they read it.
class Input {
 public:
  explicit Input(asio::io_context& loop);
  ~Input();
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  /// What the next process that is rank 0 gets as its standard input; -1: nothing.
  int next();
  /// That process has started, and what next() returned is only its own.
  void is_handed_over();

 private:
  struct Typed;
  asio::io_context& loop_;
  bool is_terminal_;
  std::shared_ptr<Typed> typed_;  // owned by this and by what waits in the loop
};

}  // namespace troupe::apps
