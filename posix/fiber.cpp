#include "posix/fiber.hpp"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <new>
#include <utility>

#include "core/errors.hpp"

namespace troupe::posix {

namespace {

std::size_t guard_bytes() {
  return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

struct Fiber::State {
  std::function<void()> body;
  void* mapping = nullptr;  ///< the stack, below it a page that ends the process
  std::size_t stack_bytes = 0;
  ucontext_t inside{};
  ucontext_t outside{};
  bool running = false;
  bool ended = false;

  static void enter(unsigned high, unsigned low) {
    auto address = static_cast<std::uintptr_t>(high) << 32 | low;
    auto* state = reinterpret_cast<State*>(address);
    state->body();
    state->ended = true;
  }
};

Fiber::Fiber(std::function<void()> body, std::size_t stack_bytes) : state_(std::make_unique<State>()) {
  state_->body = std::move(body);
  state_->stack_bytes = stack_bytes;
  // Untouched pages of the mapping cost nothing, so hundreds of fibers are cheap.
  state_->mapping = mmap(nullptr, stack_bytes + guard_bytes(), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  // Without memory this does what `new` does: the handler of a program ends it with a sentence.
  if (const auto handler = std::get_new_handler(); handler != nullptr && state_->mapping == MAP_FAILED)
    handler();
  CHECK(state_->mapping != MAP_FAILED, "there is memory for a fiber's stack");
  CHECK(mprotect(state_->mapping, guard_bytes(), PROT_NONE) == 0, "the end of a stack can be guarded");
  CHECK(getcontext(&state_->inside) == 0, "a context can be made");
  state_->inside.uc_stack.ss_sp = static_cast<std::byte*>(state_->mapping) + guard_bytes();
  state_->inside.uc_stack.ss_size = stack_bytes;
  state_->inside.uc_link = &state_->outside;
  auto address = reinterpret_cast<std::uintptr_t>(state_.get());
  makecontext(&state_->inside, reinterpret_cast<void (*)()>(&State::enter), 2,
              static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
}

Fiber::~Fiber() {
  CHECK(!state_->running, "a fiber is not destroyed from within");
  munmap(state_->mapping, state_->stack_bytes + guard_bytes());
}

void Fiber::resume() {
  CHECK(!state_->running && !state_->ended, "a fiber that rests is resumed");
  state_->running = true;
  swapcontext(&state_->outside, &state_->inside);
  state_->running = false;
}

void Fiber::yield() {
  CHECK(state_->running, "only the fiber itself yields");
  swapcontext(&state_->inside, &state_->outside);
}

bool Fiber::has_ended() const {
  return state_->ended;
}

}  // namespace troupe::posix
