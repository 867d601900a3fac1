#include "parallel.h"

#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>

#if defined(GS_OPENMP)
#include <omp.h>
#else
#include <thread>
#include <vector>
#endif

namespace gs {

namespace {

// The first exception of any task, carried to the caller: nothing may leave an OpenMP region.
struct Failure {
  std::atomic<bool> failed{false};
  std::exception_ptr first;
  std::mutex mutex;
  void keep() {
    std::lock_guard<std::mutex> lock(mutex);
    if (!first) first = std::current_exception();
    failed = true;
  }
};

void run(int64_t tasks, std::atomic<int64_t>& next, Failure& failure, void (*fn)(void*, int64_t),
         void* ctx) {
  try {
    for (int64_t task; !failure.failed && (task = next.fetch_add(1)) < tasks;) fn(ctx, task);
  } catch (...) {
    failure.keep();
  }
}

}  // namespace

void parallel(int64_t tasks, int threads, void (*fn)(void*, int64_t), void* ctx) {
  if (threads > tasks) threads = static_cast<int>(tasks);
  if (threads <= 1) {
    for (int64_t task = 0; task < tasks; ++task) fn(ctx, task);
    return;
  }
  std::atomic<int64_t> next{0};
  Failure failure;
#if defined(GS_OPENMP)
#pragma omp parallel num_threads(threads)
  run(tasks, next, failure, fn, ctx);
#else
  std::vector<std::thread> workers;
  for (int i = 1; i < threads; ++i)
    workers.emplace_back([&] { run(tasks, next, failure, fn, ctx); });
  run(tasks, next, failure, fn, ctx);
  for (auto& worker : workers) worker.join();
#endif
  if (failure.first) std::rethrow_exception(failure.first);
}

void* Buffer::get(size_t bytes) {
  if (bytes <= size_ && data_) return data_;
  release();
  const size_t rounded = (bytes + 4095) / 4096 * 4096 + 4096;
  data_ = std::aligned_alloc(64, rounded);
  if (!data_) throw std::bad_alloc();
  size_ = rounded;
  return data_;
}

void Buffer::release() {
  std::free(data_);
  data_ = nullptr;
  size_ = 0;
}

namespace {
thread_local Buffer shared_buffers[SHARED_SLOTS];
thread_local Buffer local_buffers[LOCAL_SLOTS];
}  // namespace

Buffer& shared_buffer(SharedSlot slot) { return shared_buffers[slot]; }
Buffer& local_buffer(LocalSlot slot) { return local_buffers[slot]; }
void release_buffers() {
  for (auto& buffer : shared_buffers) buffer.release();
  for (auto& buffer : local_buffers) buffer.release();
}

}  // namespace gs
