// Tests of the C ABI, without a framework: every check that fails is told, and the program ends
// with status 1. Built and run by the Makefile beside this file.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <set>
#include <string>

#include "../gossamer.h"

void test_pattern();
void test_normals();
void test_posterior();
void test_batchnorm();
void test_natural();
void test_random(int cases);
void test_corners();
void test_large();

namespace {
int failures = 0;
}

void fail(const char* file, int line, const char* what, const char* where) {
  // A case fails in every number type and on every number of threads: it is told once.
  static std::set<std::string> told;
  const std::string key = std::to_string(line) + where + gs_isa();
  if (++failures && told.size() < 40 && told.insert(key).second)
    std::fprintf(stderr, "%s:%d: %s [%s, %s]\n", file, line, what, where, gs_isa());
}

// run CASES [INSTRUCTION SET]
int main(int count, char** arguments) {
  const int cases = count > 1 ? std::atoi(arguments[1]) : 300;
  const char* only = count > 2 ? arguments[2] : nullptr;
  if (gs_use_isa("generic") != GS_OK) fail(__FILE__, __LINE__, "generic code runs anywhere", "main");
  if (gs_use_isa("abacus") != GS_BAD_ARGUMENT) fail(__FILE__, __LINE__, "an unknown one is refused", "main");
  // What each instruction set computes must be right by itself, on the same cases.
  for (const char* name : {"generic", "avx2", "avx512", "neon"}) {
    if (only && std::strcmp(only, name) != 0) continue;
    if (gs_use_isa(name) != GS_OK) {
      std::printf("%-8s not on this processor\n", name);
      continue;
    }
    const int before = failures;
    test_pattern();
    test_normals();
    test_posterior();
    test_batchnorm();
    test_natural();
    test_corners();
    test_large();
    test_random(cases);
    gs_release();
    std::printf("%-8s %s\n", name, failures == before ? "passed" : "FAILED");
    std::fflush(stdout);
  }
  if (failures) std::printf("%d checks failed\n", failures);
  return failures ? 1 : 0;
}
