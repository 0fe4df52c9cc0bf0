#include "apps/gpt/command.hpp"

int main(int argc, char** argv) {
  return troupe::apps::gpt::run_command(argc, argv);
}
