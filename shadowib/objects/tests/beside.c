/* Stands for a backend: what is in the link namespace before the foreign library. */
int beside;
