/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_BENCH_JSON_OUT_H
#define KVX_BENCH_JSON_OUT_H
/* Writing of JSON scalars: whatever bytes come in, the output is valid JSON in valid UTF-8. */
#include <stdio.h>

/* A string with quotes. Bytes that are not UTF-8 become U+FFFD. */
void json_out_string(FILE *file, const char *text);

/* A number; null if it is not finite. */
void json_out_number(FILE *file, double value);

/* A number where the whole text is one in JSON's own syntax, else a string. */
void json_out_scalar(FILE *file, const char *text);

#endif
