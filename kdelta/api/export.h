/* What the shared library shows. C99 and C++. */
#ifndef KDELTA_API_EXPORT_H_
#define KDELTA_API_EXPORT_H_

#if defined(__GNUC__)
#define KDELTA_API __attribute__((visibility("default")))
#define KDELTA_HIDDEN __attribute__((visibility("hidden")))
#else
#define KDELTA_API
#define KDELTA_HIDDEN
#endif

#endif
