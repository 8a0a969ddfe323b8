"""Progress lines of other trainers, so that unmodified programs stream too. Pure.

`reader` reads lines in their order; the modules beside it know formats: `iterations` those that
count steps, `epochs` those that count within epochs, `bars` the progress bars of tqdm and rich with
what Hugging Face's Trainer and Lightning print beside them.
"""
